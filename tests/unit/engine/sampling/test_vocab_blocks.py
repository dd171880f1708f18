import pytest
import torch

from atomesh.engine.sampling.vocab_blocks import (
    BLOCK,
    argmax,
    into_blocks,
    largest_values,
    noise_per_row,
    race,
)

VOCABULARIES = [1, 2, 255, 256, 257, 1000, 1024]


def test_blocks_share_memory_when_the_vocabulary_divides() -> None:
    rows = torch.randn(3, 512)
    blocks = into_blocks(rows, padding=0.0)
    assert blocks.shape == (3, 2, 256)
    assert blocks.data_ptr() == rows.data_ptr()


def test_blocks_are_padded_when_it_does_not() -> None:
    blocks = into_blocks(torch.ones(1, 257), padding=-7.0)
    assert blocks.shape == (1, 2, 256)
    assert blocks[0, 1].tolist() == [1.0] + [-7.0] * 255


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_argmax_is_the_first_of_the_largest(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    rows = torch.randint(-3, 3, (20, vocab), generator=generator).float()  # full of ties
    assert argmax(rows).tolist() == [row.index(max(row)) for row in rows.tolist()]


def test_argmax_sees_past_banned_tokens() -> None:
    row = torch.full((1, 600), -torch.inf)
    row[0, 599] = -3.0
    assert argmax(row).tolist() == [599]


def waiting(rows: int, vocab: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (rows, noise_per_row(vocab))
    return torch.empty(size, dtype=torch.float64).exponential_(generator=generator)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_the_fastest_block_wins_and_in_it_the_fastest_token(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    weights = torch.randint(0, 4, (50, vocab), generator=generator).float()
    weights[:, 0] += 1.0
    waits = waiting(50, vocab, seed=vocab)
    for row, wait, chosen in zip(
        weights.tolist(), waits.tolist(), race(weights, waits).tolist(), strict=True
    ):
        blocks = [row[start : start + BLOCK] for start in range(0, vocab, BLOCK)]
        speeds = [sum(block) / wait[i] for i, block in enumerate(blocks)]
        block = speeds.index(max(speeds))
        inside = [mass / wait[len(blocks) + i] for i, mass in enumerate(blocks[block])]
        assert chosen == block * BLOCK + inside.index(max(inside))


def test_each_token_wins_as_often_as_it_is_heavy() -> None:
    weights = torch.zeros(1, 700)
    shares = {3: 0.05, 255: 0.2, 256: 0.3, 300: 0.05, 699: 0.4}
    for token, share in shares.items():
        weights[0, token] = 8 * share
    draws = 20_000
    chosen = race(weights.expand(draws, -1), waiting(draws, 700, seed=5))
    counts = torch.bincount(chosen, minlength=700)
    assert counts.sum() == sum(counts[token] for token in shares)
    statistic = sum((counts[token] - draws * share) ** 2 / (draws * share) for token, share in shares.items())
    assert torch.special.gammaincc(torch.tensor(4 / 2), statistic / 2) > 0.001


def test_noise_in_the_weights_changes_a_draw_only_in_a_dead_heat() -> None:
    """As two batches compute them: an id's border on a running sum would be crossed some ten times here."""
    rows, vocab = 1000, 49_152
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(rows, vocab, generator=generator)
    waits = waiting(rows, vocab, seed=8)
    nearly = logits * (1 + 1e-6 * torch.randn(rows, vocab, generator=generator))
    changed = race(logits.softmax(-1), waits) != race(nearly.softmax(-1), waits)
    assert changed.sum() <= 1


def test_a_row_does_not_depend_on_the_others() -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(33, 3001, generator=generator).softmax(-1)
    waits = waiting(33, 3001, seed=3)
    together = race(weights, waits).tolist()
    alone = [race(weights[i : i + 1], waits[i : i + 1]).item() for i in range(33)]
    assert together == alone


@pytest.mark.parametrize("vocab", [300, 2560, 3001])
@pytest.mark.parametrize("k", [1, 5, 11, 300])
def test_largest_values_are_topks(vocab: int, k: int) -> None:
    generator = torch.Generator().manual_seed(vocab + k)
    rows = torch.stack([torch.randperm(vocab, generator=generator).float() for _ in range(9)])  # no ties
    values, ids = largest_values(rows, k)
    expected = rows.topk(k)
    assert values.equal(expected.values)
    assert ids.equal(expected.indices)


def test_largest_values_of_equals_are_the_equals() -> None:
    rows = torch.randint(0, 3, (5, 5120), generator=torch.Generator().manual_seed(0)).float()
    values, ids = largest_values(rows, 12)
    assert values.equal(rows.topk(12).values)
    assert rows.gather(1, ids).equal(values)
    assert all(len(set(row)) == 12 for row in ids.tolist())
