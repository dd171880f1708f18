from collections.abc import Sequence

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atomesh.engine.sampling.reasoning import FREE, Steering, steer
from atomesh.engine.sampling.sampler import Sampler, SampleRow
from atomesh.protocol.reasoning import ReasoningSpec
from atomesh.protocol.sampling import SamplingSpec

OPEN, CLOSE, CLOSED, EOS, WORD = 7, 8, 9, 2, 5
INSIDE = ReasoningSpec(end=(CLOSE,), begins_inside=True, max_tokens=3)
OPENS = ReasoningSpec(start=(OPEN,), end=(CLOSE,), max_tokens=3)
TWO_WORDS = ReasoningSpec(end=(CLOSE, CLOSED), begins_inside=True, max_tokens=3)
REQUIRED = ReasoningSpec(start=(OPEN, WORD), end=(CLOSE,), then=(3, 4), is_required=True)


def forced(token: int) -> Steering:
    return Steering(forced=token)


ON = Steering(must_go_on=True)


@pytest.mark.parametrize(
    ("spec", "output", "expected"),
    [
        (None, [WORD] * 9, FREE),
        (INSIDE, [], FREE),
        (INSIDE, [1, 1], FREE),
        (INSIDE, [1, 1, 1], forced(CLOSE)),
        (INSIDE, [1, CLOSE, 1], FREE),
        (INSIDE, [1, 1, 1, CLOSE], FREE),
        (INSIDE, [1] * 9, FREE),  # as it would be had another worker not known of the limit
        (msgspec.structs.replace(INSIDE, max_tokens=0), [], forced(CLOSE)),
        (OPENS, [1, 1, 1], FREE),
        (OPENS, [OPEN, 1, 1], FREE),
        (OPENS, [OPEN, 1, 1, 1], forced(CLOSE)),
        (OPENS, [1, 1, 1, 1, OPEN, 1, 1, 1], forced(CLOSE)),
        (OPENS, [1, 1, 1, 1, 1, OPEN, 1, 1, 1], FREE),  # an answer that only speaks of the tag
        (OPENS, [OPEN, 1, CLOSE, OPEN, 1, 1, 1], FREE),
        (TWO_WORDS, [1, 1, 1], forced(CLOSE)),
        (TWO_WORDS, [1, 1, CLOSE], forced(CLOSED)),
        (TWO_WORDS, [1, 1, 1, CLOSE], forced(CLOSED)),
        (TWO_WORDS, [1, 1, 1, CLOSE, CLOSED], FREE),
        (TWO_WORDS, [CLOSE, 1, 1], forced(CLOSE)),
        (REQUIRED, [], forced(OPEN)),
        (REQUIRED, [OPEN], forced(WORD)),
        (REQUIRED, [OPEN, WORD], ON),
        (REQUIRED, [OPEN, WORD, 1], ON),
        (REQUIRED, [OPEN, WORD, 1, CLOSE], forced(3)),
        (REQUIRED, [OPEN, WORD, 1, CLOSE, 3], forced(4)),
        (REQUIRED, [OPEN, WORD, 1, CLOSE, 3, 4], FREE),
        (msgspec.structs.replace(REQUIRED, begins_inside=True), [], ON),
    ],
)
def test_says_what_may_follow(spec: ReasoningSpec | None, output: list[int], expected: Steering) -> None:
    assert steer(spec, output) == expected


specs = st.builds(
    ReasoningSpec,
    start=st.just((OPEN,)),
    end=st.sampled_from([(CLOSE,), (CLOSE, CLOSED), (CLOSE, CLOSE, CLOSED)]),
    then=st.sampled_from([(), (3,), (3, 4)]),
    begins_inside=st.booleans(),
    is_required=st.booleans(),
    max_tokens=st.integers(0, 6),
)


@given(specs, st.lists(st.integers(0, 9), min_size=40, max_size=40))
def test_no_reasoning_is_longer_than_allowed(spec: ReasoningSpec, wishes: list[int]) -> None:
    """`wishes` are what the model would say where it is free."""
    output: list[int] = []
    for wish in wishes:
        steering = steer(spec, output)
        output.append(wish if steering.forced is None else steering.forced)
    if spec.is_required and not spec.begins_inside:
        assert output[0] == OPEN
    first = 0 if spec.begins_inside else output[:5].index(OPEN) + 1 if OPEN in output[:5] else None
    if first is None:
        assert output == wishes
        return
    end = next(at for at in range(first, 40) if tuple(output[at : at + len(spec.end)]) == spec.end)
    assert end - first <= (spec.max_tokens or 0)
    rest = output[end + len(spec.end) :]
    assert tuple(rest[: len(spec.then)]) == spec.then
    assert rest[len(spec.then) :] == wishes[len(output) - len(rest) + len(spec.then) :]


def sample(spec: SamplingSpec, output: Sequence[int]) -> int:
    logits = torch.zeros(10)
    logits[EOS], logits[WORD] = 5.0, 4.0
    [token] = Sampler(10).sample(logits.unsqueeze(0), [SampleRow(0, spec, 0, [], output)])
    assert not isinstance(token, str)
    return int(token.token_id)  # type: ignore[union-attr]


def test_the_sampler_obeys_whatever_else_is_asked() -> None:
    asked = SamplingSpec(
        seed=0,
        max_tokens=9,
        temperature=0.0,
        eos_token_ids=(EOS,),
        allowed_token_ids=(WORD, EOS),
        bad_words=((CLOSE,),),
        reasoning=INSIDE,
    )
    assert [sample(asked, [WORD] * count) for count in range(4)] == [EOS, EOS, EOS, CLOSE]


def test_required_reasoning_is_not_where_an_answer_ends() -> None:
    asked = SamplingSpec(seed=0, max_tokens=9, temperature=0.0, eos_token_ids=(EOS,), reasoning=REQUIRED)
    output: list[int] = []
    for _ in range(4):
        output.append(sample(asked, output))
    assert output == [OPEN, WORD, WORD, WORD]
    assert sample(asked, [*output, CLOSE, 3, 4]) == EOS


def test_the_seed_decides_as_without_a_limit_where_nothing_is_forced() -> None:
    free = SamplingSpec(seed=5, max_tokens=9)
    limited = msgspec.structs.replace(free, reasoning=INSIDE)
    assert [sample(free, [1] * count) for count in range(3)] == [
        sample(limited, [1] * count) for count in range(3)
    ]
