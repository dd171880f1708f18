import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from atomesh.engine.core.batch import SampledToken
from atomesh.engine.sampling.noise import exponentials
from atomesh.engine.sampling.sampler import NoToken, Sampler, SampleRow
from atomesh.protocol.sampling import SamplingSpec

VOCAB = 24
LOGITS = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(42)) * 1.5


def spec(**fields: Any) -> SamplingSpec:
    return SamplingSpec(**{"seed": 7, "max_tokens": 100_000, **fields})


def row(
    asked: SamplingSpec,
    logits_row: int = 0,
    choice: int = 0,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
) -> SampleRow:
    return SampleRow(logits_row, asked, choice, prompt, output)


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | NoToken]:
    return Sampler(logits.shape[1]).sample(logits, rows)


def ids(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int | NoToken]:
    chosen = sample(logits, rows)
    return [token if isinstance(token, NoToken) else token.token_id for token in chosen]


def exact_distribution(logits: torch.Tensor, asked: SamplingSpec) -> list[float]:
    """By definition, in double precision: min_p, top_k, top_p, each over what the one before left."""
    scaled = logits[0].double() / asked.temperature
    mass = dict(sorted(enumerate(scaled.softmax(-1).tolist()), key=lambda pair: -pair[1]))
    floor = asked.min_p * max(mass.values())
    left = [(i, p) for i, p in mass.items() if p >= floor][: asked.top_k or None]
    kept, total, whole = {}, 0.0, sum(p for _, p in left)
    for i, p in left:
        if total >= asked.top_p * whole:
            break
        kept[i] = p
        total += p
    return [kept.get(i, 0.0) / total for i in range(logits.shape[1])]


def chi_square_p_value(observed: Counter[int], expected: list[float], draws: int) -> float:
    """Pearson's test; tokens with an expected count below five share one cell."""
    assert all(expected[i] > 0.0 for i in observed)
    large = [i for i, p in enumerate(expected) if p * draws >= 5]
    cells = [(observed[i], expected[i] * draws) for i in large]
    rest = draws - sum(e for _, e in cells)
    if rest > 1e-6:
        cells.append((draws - sum(o for o, _ in cells), rest))
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    if len(cells) == 1:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2), torch.tensor(statistic / 2)))


@pytest.mark.parametrize(
    "asked",
    [
        spec(),
        spec(temperature=0.3),
        spec(temperature=2.0),
        spec(top_k=5),
        spec(top_p=0.7),
        spec(min_p=0.1),
        spec(temperature=1.7, top_k=9, top_p=0.8, min_p=0.05),
    ],
    ids=["plain", "cold", "hot", "top_k", "top_p", "min_p", "all"],
)
@pytest.mark.parametrize("axis", ["index", "choice", "seed"])
def test_draws_follow_the_exact_distribution(asked: SamplingSpec, axis: str) -> None:
    draws = 3000
    if axis == "index":
        rows = [row(asked, output=range(i)) for i in range(draws)]
    elif axis == "choice":
        rows = [row(asked, choice=i) for i in range(draws)]
    else:
        fields = {name: getattr(asked, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        rows = [row(spec(**fields | {"seed": i})) for i in range(draws)]
    observed = Counter(token_id for token_id in ids(LOGITS, rows) if token_id is not None)
    assert observed.total() == draws
    assert chi_square_p_value(observed, exact_distribution(LOGITS, asked), draws) > 0.001


def test_a_draw_is_won_by_the_waits_of_its_counter() -> None:
    asked = spec(seed=-5)
    weights = LOGITS[0].double().softmax(-1).numpy()
    for index in range(50):
        waits = exponentials(-5, 2, index, 1 + 256)  # one block of tokens, whose own race it wins in any case
        expected = int((weights / waits[1 : 1 + VOCAB]).argmax())
        assert ids(LOGITS, [row(asked, choice=2, output=[0] * index)]) == [expected]


def mixed_rows(logits_rows: int) -> list[SampleRow]:
    kinds = [
        spec(temperature=0.0),
        spec(temperature=0.0, repetition_penalty=1.3, logprobs=2),
        spec(seed=1),
        spec(seed=2, top_p=0.9, temperature=0.7, logprobs=0),
        spec(seed=3, top_k=20, presence_penalty=1.0, frequency_penalty=0.5),
        spec(seed=4, min_p=0.05, logit_bias={5: 4.0, 9: -100.0}, logprobs=5),
        spec(seed=5, bad_words=((7,), (1, 2)), min_tokens=9, eos_token_ids=(3,)),
        spec(seed=6, allowed_token_ids=tuple(range(0, 900, 3)), logprobs=1),
    ]
    return [
        row(kinds[i % len(kinds)], logits_row=i, prompt=[i, i + 1, 2], output=[4, 1, 1][: i % 4])
        for i in range(logits_rows)
    ]


@pytest.mark.parametrize("vocab", [1024, 1001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_answer_does_not_depend_on_the_batch(vocab: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(32, vocab, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)
    rows = mixed_rows(32)
    together = sample(logits, rows)
    assert together == [sample(logits, [one])[0] for one in rows]
    assert together[::-1] == sample(logits, rows[::-1])
    assert together[5:17] == sample(logits, rows[5:17])


def test_rows_beyond_one_chunk_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(32, 1000, generator=torch.Generator().manual_seed(3))
    whole = sample(logits, mixed_rows(32))
    monkeypatch.setattr("atomesh.engine.sampling.sampler.VALUES_AT_ONCE", 5000)
    assert sample(logits, mixed_rows(32)) == whole


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, -1.0, 5.0, 2.0]])
    asked = spec(temperature=0.0)
    assert ids(logits, [row(asked, 1), row(asked, 0)]) == [0, 1]


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert ids(LOGITS, [row(spec(temperature=t)) for t in (1e-45, 1e-6, 2e-5)]) == [int(LOGITS.argmax())] * 3


def test_choices_of_one_row_differ_and_repeat() -> None:
    logits = torch.zeros(1, 1000)
    rows = [row(spec(), choice=choice) for choice in range(4)]
    first = ids(logits, rows)
    assert len(set(first)) == 4
    assert ids(logits, rows) == first


def test_logprobs_are_raw_and_only_for_those_who_ask() -> None:
    asked = spec(temperature=0.0, logit_bias={3: 100.0}, logprobs=2)
    with_logprobs, without = sample(LOGITS, [row(asked), row(spec(temperature=0.0))])
    assert with_logprobs is not None
    assert with_logprobs.logprobs is not None
    assert without is not None
    assert without.logprobs is None
    entry, raw = with_logprobs.logprobs, LOGITS[0].log_softmax(-1)
    assert entry.token_id == with_logprobs.token_id == 3
    assert entry.logprob == pytest.approx(float(raw[3]), abs=1e-6)
    assert entry.rank == int((raw > raw[3]).sum()) + 1
    assert [token_id for token_id, _ in entry.top] == raw.topk(2).indices.tolist()


def test_logprobs_zero_gives_the_token_alone() -> None:
    (token,) = sample(LOGITS, [row(spec(temperature=0.0, logprobs=0))])
    assert token is not None
    assert token.logprobs is not None
    assert token.logprobs.top == []
    assert token.logprobs.rank == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_has_no_token_and_harms_no_other(bad: float, temperature: float) -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    good = logits.clone()
    logits[1, 123] = bad
    rows = [row(spec(temperature=temperature, logprobs=1, top_k=9), i) for i in range(3)]
    first, second, third = sample(logits, rows)
    assert second is NoToken.NOT_FINITE
    assert [first, third] == sample(good, [rows[0], rows[2]])


def test_finite_logits_whose_sum_overflows_are_good() -> None:
    logits = torch.full((1, 300), 3e38)
    logits[0, 17] = 3.1e38
    assert ids(logits, [row(spec(temperature=0.0))]) == [17]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constraints_that_leave_nothing_forbid_every_token(temperature: float) -> None:
    impossible = spec(temperature=temperature, allowed_token_ids=(2,), eos_token_ids=(2,), min_tokens=1)
    possible = spec(temperature=temperature, allowed_token_ids=(2,))
    assert ids(LOGITS, [row(impossible), row(possible)]) == [NoToken.FORBIDDEN, 2]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
@pytest.mark.parametrize(
    ("penalty", "logits", "prompt", "best"),
    [
        (1e-45, [1.0, 2.0, 9.0], [0, 1], 1),
        (1e-30, [1.0, 2.0, 9.0], [0, 1], 1),
        (1e30, [-2.0, -1.0, -9.0], [0, 1, 2], 1),
        (1e300, [-2.0, -1.0, -9.0], [0, 1, 2], 1),
    ],
)
def test_an_extreme_penalty_leaves_one_choice(
    penalty: float, logits: list[float], prompt: list[int], best: int, temperature: float
) -> None:
    asked = spec(temperature=temperature, repetition_penalty=penalty, top_k=2, top_p=0.9)
    rows = [row(asked, choice=choice, prompt=prompt) for choice in range(20)]
    assert ids(torch.tensor([logits]), rows) == [best] * 20


def test_banned_tokens_are_never_drawn() -> None:
    asked = spec(
        temperature=2.0, logit_bias={0: -math.inf}, bad_words=((1,),), min_tokens=10**6, eos_token_ids=(2,)
    )
    drawn = ids(torch.zeros(1, 4), [row(asked, output=range(10, 10 + i)) for i in range(200)])
    assert set(drawn) == {3}


def test_surplus_columns_of_a_padded_vocabulary_are_ignored() -> None:
    logits = torch.zeros(2, 12)
    logits[:, 10:] = math.nan
    logits[1, 9] = 4.0
    rows = [row(spec(temperature=0.0), 1), row(spec(), 0)]
    first, second = Sampler(10).sample(logits, rows)
    assert first is not None
    assert first.token_id == 9
    assert second is not None
    assert second.token_id < 10


def test_no_rows_no_tokens_and_the_logits_stay_as_they_are() -> None:
    logits = torch.randn(32, 1000, generator=torch.Generator().manual_seed(3))
    before = logits.clone()
    assert sample(logits, []) == []
    sample(logits, mixed_rows(32))
    assert logits.equal(before)
