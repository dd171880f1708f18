import pytest
import torch

from atomesh.engine.sampling.vocab_blocks import argmax, into_blocks, invert_cdf, largest_values

BELOW_ONE = 1.0 - 2.0**-53
VOCABULARIES = [1, 2, 255, 256, 257, 1000, 1024]


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


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


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_inverse_cdf_equals_the_running_sum(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    weights = torch.randint(0, 4, (50, vocab), generator=generator).float()  # sums are exact
    weights[:, 0] += 1.0
    uniforms = torch.rand(50, generator=generator, dtype=torch.float64)
    cdf = weights.double().cumsum(-1)
    expected = [
        next(i for i, mass in enumerate(row) if mass > u * row[-1])
        for row, u in zip(cdf.tolist(), uniforms.tolist(), strict=True)
    ]
    assert invert_cdf(weights, uniforms).tolist() == expected


def test_inverse_cdf_at_its_ends_never_takes_a_weight_of_zero() -> None:
    weights = torch.zeros(2, 700)
    weights[:, 300] = 0.25
    weights[:, 301] = 0.75
    assert invert_cdf(weights, doubles(0.0, BELOW_ONE)).tolist() == [300, 301]
    assert invert_cdf(weights, doubles(0.25, 0.2499999)).tolist() == [301, 300]


def test_rounding_between_a_blocks_two_sums_stays_inside_it() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(200, 512, generator=generator) ** 40
    weights[:, 200:256] = 0.0
    weights[:, 400:] = 0.0
    chosen = invert_cdf(weights, torch.full((200,), BELOW_ONE, dtype=torch.float64))
    assert (weights.gather(1, chosen.unsqueeze(1)) > 0.0).all()


def test_a_row_does_not_depend_on_the_others() -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(33, 3001, generator=generator).softmax(-1)
    uniforms = torch.rand(33, generator=generator, dtype=torch.float64)
    together = invert_cdf(weights, uniforms).tolist()
    alone = [invert_cdf(weights[i : i + 1], uniforms[i : i + 1]).item() for i in range(33)]
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
