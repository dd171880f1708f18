import math

import pytest
import torch

from atomesh.engine.sampling.logprobs import prompt_logprobs, token_logprobs


def by_definition(row: list[float], token_id: int) -> float:
    return row[token_id] - math.log(sum(math.exp(value) for value in row))


def ranking(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("top", [0, 1, 5, 20])
@pytest.mark.parametrize("vocab", [30, 1000, 6000])
def test_logprob_rank_and_top_are_exact(dtype: torch.dtype, top: int, vocab: int) -> None:
    generator = torch.Generator().manual_seed(top)
    logits = (torch.randn(16, vocab, generator=generator) * 4).to(dtype)
    targets = torch.randint(0, vocab, (16,), generator=generator).tolist()
    entries = prompt_logprobs(logits, targets, top)
    for row, target, entry in zip(logits.float().tolist(), targets, entries, strict=True):
        order = ranking(row)
        assert entry.token_id == target
        assert entry.logprob == pytest.approx(by_definition(row, target), abs=1e-5)
        assert entry.rank == order.index(target) + 1
        assert [token_id for token_id, _ in entry.top] == order[:top]
        assert [value for _, value in entry.top] == pytest.approx(
            [by_definition(row, i) for i in order[:top]], abs=1e-5
        )
        if entry.rank <= top:
            assert entry.top[entry.rank - 1] == (target, entry.logprob)  # the same float


def test_among_equals_the_lower_id_is_first() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0, 1.0]])
    (entry,) = token_logprobs(logits, [3], 4)
    assert entry.rank == 2
    assert [token_id for token_id, _ in entry.top] == [1, 3, 4, 2]
    assert entry.top[0][1] == entry.top[1][1] == entry.logprob


def test_a_constant_row_ranks_by_id() -> None:
    (entry,) = token_logprobs(torch.zeros(1, 4096), [4000], 20)
    assert entry.rank == 4001
    assert [token_id for token_id, _ in entry.top] == list(range(20))
    assert entry.logprob == pytest.approx(-math.log(4096))


def test_the_argmax_is_first_with_the_same_float() -> None:
    logits = torch.randn(8, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    best = logits.float().argmax(-1).tolist()
    for token_id, entry in zip(best, token_logprobs(logits, best, 1), strict=True):
        assert entry.rank == 1
        assert entry.top == [(token_id, entry.logprob)]


def test_top_is_bounded_by_the_vocabulary() -> None:
    (entry,) = token_logprobs(torch.tensor([[1.0, 3.0, 2.0]]), [0], 20)
    assert [token_id for token_id, _ in entry.top] == [1, 2, 0]


def test_large_logits_do_not_overflow() -> None:
    (entry,) = token_logprobs(torch.tensor([[3e4, 0.0, -3e4]]), [0], 3)
    assert entry.logprob == 0.0
    assert entry.top == [(0, 0.0), (1, -3e4), (2, -6e4)]


def test_no_rows_no_entries() -> None:
    assert prompt_logprobs(torch.zeros(0, 7), [], 3) == []


def test_the_logits_stay_as_they_are() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    token_logprobs(logits, [1, 2, 3], 5)
    assert logits.equal(before)
