from collections.abc import Sequence
from typing import Any

import pytest
import torch

from atomesh.engine.sampling.constraints import History, constrain, constrains
from atomesh.protocol.reasoning import ReasoningSpec
from atomesh.protocol.sampling import SamplingSpec

BANNED = -torch.inf


def spec(**fields: Any) -> SamplingSpec:
    return SamplingSpec(seed=0, max_tokens=8, **fields)


def constrained(
    logits: Sequence[float], asked: SamplingSpec, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> list[float]:
    row = torch.tensor(logits, dtype=torch.float32)
    constrain(row, asked, History(prompt, output))
    result: list[float] = row.tolist()
    return result


@pytest.mark.parametrize(
    ("asked", "num_output", "expected"),
    [
        (spec(), 0, False),
        (spec(temperature=0.5, top_k=3, top_p=0.5, min_p=0.5, logprobs=3, stop_token_ids=(1,)), 0, False),
        (spec(min_tokens=2), 1, True),
        (spec(min_tokens=2), 2, False),
        (spec(repetition_penalty=1.1), 0, True),
        (spec(presence_penalty=-0.1), 0, True),
        (spec(frequency_penalty=0.1), 0, True),
        (spec(logit_bias={1: 2.0}), 0, True),
        (spec(allowed_token_ids=(0,)), 0, True),
        (spec(bad_words=((1,),)), 0, True),
        (spec(reasoning=ReasoningSpec(end=(9,), begins_inside=True, max_tokens=2)), 1, False),
        (spec(reasoning=ReasoningSpec(end=(9,), begins_inside=True, max_tokens=2)), 2, True),
    ],
)
def test_knows_when_there_is_nothing_to_do(asked: SamplingSpec, num_output: int, expected: bool) -> None:
    assert constrains(asked, [0] * num_output) is expected


def test_repetition_penalty_is_for_prompt_and_output_once_a_token() -> None:
    asked = spec(repetition_penalty=2.0)
    assert constrained([4.0, -4.0, 3.0, 0.0], asked, prompt=[0, 0], output=[1, 3, 1]) == [2.0, -8.0, 3.0, 0.0]


def test_presence_and_frequency_penalties_are_for_the_output_alone() -> None:
    asked = spec(presence_penalty=0.5, frequency_penalty=0.25)
    assert constrained([1.0, 1.0, 1.0, 1.0], asked, prompt=[0, 0, 1], output=[1, 2, 2, 2]) == [
        1.0,
        0.25,
        -0.25,
        1.0,
    ]


def test_negative_penalties_encourage() -> None:
    asked = spec(presence_penalty=-2.0, frequency_penalty=-1.0)
    assert constrained([0.0, 0.0], asked, output=[1, 1]) == [0.0, 4.0]


def test_penalties_without_output_do_nothing() -> None:
    assert constrained([1.0, 2.0], spec(presence_penalty=1.0), prompt=[0, 1]) == [1.0, 2.0]


def test_bias_comes_before_the_repetition_penalty() -> None:
    asked = spec(logit_bias={0: -3.0, 2: 1.5}, repetition_penalty=2.0)
    assert constrained([1.0, 1.0, 1.0], asked, prompt=[0]) == [-4.0, 1.0, 2.5]


def test_allowed_ids_ban_the_rest() -> None:
    assert constrained([1.0, 2.0, 3.0, 4.0], spec(allowed_token_ids=(2, 0))) == [1.0, BANNED, 3.0, BANNED]


def test_bias_does_not_bring_a_banned_token_back() -> None:
    asked = spec(allowed_token_ids=(0,), logit_bias={1: 100.0}, presence_penalty=-2.0, repetition_penalty=0.5)
    assert constrained([1.0, 2.0], asked, output=[1]) == [1.0, BANNED]


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ([], [0]),
        ([1], [0, 2]),
        ([2], [0]),
        ([3, 1], [0, 2, 3]),
        ([1, 3, 1], [0, 2, 3]),
        ([3, 1, 2], [0]),
        ([3, 3], [0]),
    ],
)
def test_a_bad_word_loses_its_last_token_when_the_rest_is_there(output: list[int], banned: list[int]) -> None:
    asked = spec(bad_words=((0,), (1, 2), (3, 1, 3)))
    row = constrained([0.0] * 5, asked, prompt=[3, 1], output=output)
    assert [i for i, value in enumerate(row) if value == BANNED] == banned


@pytest.mark.parametrize(("num_output", "banned"), [(0, [1, 3]), (1, [1, 3]), (2, []), (3, [])])
def test_min_tokens_holds_back_what_would_end_the_answer(num_output: int, banned: list[int]) -> None:
    asked = spec(min_tokens=2, eos_token_ids=(3,), stop_token_ids=(1,))
    row = constrained([0.0] * 5, asked, output=[4] * num_output)
    assert [i for i, value in enumerate(row) if value == BANNED] == banned


def test_a_long_history_with_repeats_counts_exactly() -> None:
    asked = spec(frequency_penalty=0.5)
    output = [i % 7 for i in range(1000)]
    assert constrained([0.0] * 8, asked, output=output) == [-71.5] * 6 + [-71.0, 0.0]


@pytest.mark.parametrize(
    ("penalty", "logits", "seen", "best"),
    [
        (1e-30, [2.0, 1.0, 9.0], [0, 1], 0),  # 2e30, 1e30, 9
        (1e-30, [-2.0, -1.0, -9.0], [0, 1], 1),  # -2e-30, -1e-30, -9
        (1e-30, [-2.0, -1.0, 0.5], [0, 1], 2),
        (1e30, [2.0, 1.0, 0.5], [0, 1], 2),  # 2e-30, 1e-30, 0.5
        (1e30, [1.0, 2.0, -0.5], [0, 1], 1),  # 1e-30, 2e-30, -0.5
        (1e30, [-2.0, -1.0, -9.0], [0, 1], 2),  # -2e30, -1e30, -9
        (1e30, [-2.0, -1.0, -9.0], [0, 1, 2], 1),
        (1e-45, [1.0, 2.0, 9.0], [0, 1], 1),  # beyond float32 on both sides of 0
        (1e45, [-2.0, -1.0, -9.0], [0, 1, 2], 1),
        (1e-300, [1.0, 2.0, 9.0], [0, 1], 1),
        (1e300, [1.0, 2.0, -9.0], [0, 1], 1),  # 1e-300, 2e-300, -9
        (1e300, [-2.0, -1.0, -9.0], [0, 1, 2], 1),
        (5e-324, [1.0, 0.0, -1.0], [0, 1, 2], 0),  # inf, even in float64; 0; -0
        (1.7e308, [0.0, -1.0, -2.0], [0, 1, 2], 0),
    ],
)
def test_an_extreme_repetition_penalty_leaves_finite_logits_and_the_right_choice(
    penalty: float, logits: list[float], seen: list[int], best: int
) -> None:
    row = torch.tensor(constrained(logits, spec(repetition_penalty=penalty), prompt=seen))
    assert row.isfinite().all()
    assert int(row.argmax()) == best
    assert int((row == row[best]).sum()) == 1
    assert float(row.softmax(dim=-1)[best]) > 0.3


def test_an_extreme_repetition_penalty_keeps_the_odds_of_the_others() -> None:
    row = torch.tensor(constrained([5.0, 3.0, 4.0], spec(repetition_penalty=1e40), prompt=[0]))
    # 5e-40, 3 and 4: the two unseen have the odds that they had.
    assert row.softmax(dim=-1).tolist() == pytest.approx(
        torch.tensor([0.0, 3.0, 4.0]).softmax(dim=-1).tolist()
    )


def test_an_extreme_repetition_penalty_brings_no_banned_token_back() -> None:
    for penalty in (1e-45, 0.5, 1e45):
        asked = spec(allowed_token_ids=(0, 1), repetition_penalty=penalty)
        assert constrained([-1.0, -2.0, 9.0], asked, prompt=[0, 1, 2])[2] == BANNED
        nothing = spec(bad_words=((0,), (1,)), repetition_penalty=penalty)
        assert constrained([-1.0, 2.0], nothing, prompt=[0, 1]) == [BANNED, BANNED]


def test_huge_logits_stay_finite_under_a_usual_penalty() -> None:
    assert constrained([3e38, -3e38], spec(repetition_penalty=0.5), prompt=[0]) == [
        torch.finfo(torch.float32).max,
        constrained([-3e38], spec())[0],
    ]
