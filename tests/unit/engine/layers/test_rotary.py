import math

import pytest
import torch

from atomesh.engine.layers.rotary import (
    RotaryEmbedding,
    dynamic_frequencies,
    scaled_frequencies,
    yarn_magnitude,
)
from atomesh.model_files.config import RopeScaling

CPU = torch.device("cpu")


def test_element_pairs_turn_by_position_times_frequency() -> None:
    heads = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]]).repeat(2, 1, 1)
    RotaryEmbedding(4, 100.0, None, CPU).rows(torch.tensor([0, 3]), torch.float32).rotate_(heads)
    assert heads[0, 0].tolist() == [1.0, 0.0, 0.0, 2.0]
    first, second = 3.0, 0.3  # frequencies 1 and 100 ** -0.5
    expected = [math.cos(first), -2 * math.sin(second), math.sin(first), 2 * math.cos(second)]
    torch.testing.assert_close(heads[1, 0], torch.tensor(expected))


def test_products_depend_on_the_distance_alone() -> None:
    rotary = RotaryEmbedding(8, 10_000.0, None, CPU)
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(1))

    def product(query_position: int, key_position: int) -> float:
        rows = [heads.clone() for heads in (query, key)]
        for heads, position in zip(rows, (query_position, key_position), strict=True):
            rotary.rows(torch.tensor([position]), torch.float32).rotate_(heads)
        return float((rows[0] * rows[1]).sum())

    assert product(17, 5) == pytest.approx(product(112, 100), abs=1e-4)


def test_linear_divides_every_frequency() -> None:
    plain = scaled_frequencies(8, 10_000.0, None)
    stretched = scaled_frequencies(8, 10_000.0, RopeScaling("linear", 4.0, 128))
    torch.testing.assert_close(stretched, plain / 4)


def test_llama3_keeps_short_waves_and_slows_long_ones() -> None:
    plain = scaled_frequencies(64, 10_000.0, None)
    scaling = RopeScaling("llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
    ratio = scaled_frequencies(64, 10_000.0, scaling) / plain
    waves = 2 * math.pi / plain
    assert torch.all(ratio[waves < 16] == 1)
    torch.testing.assert_close(ratio[waves > 64], torch.full_like(ratio[waves > 64], 1 / 8))
    between = ratio[(waves > 16) & (waves < 64)]
    assert len(between) > 0
    assert torch.all((between > 1 / 8) & (between < 1))


def test_yarn_keeps_the_first_dimensions_and_interpolates_the_last() -> None:
    plain = scaled_frequencies(64, 10_000.0, None)
    ratio = scaled_frequencies(64, 10_000.0, RopeScaling("yarn", 4.0, 2048)) / plain
    assert ratio[0] == 1
    assert float(ratio[-1]) == pytest.approx(0.25)
    assert torch.all(ratio[1:] <= ratio[:-1])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 0.5, "mscale_all_dim": 1.0}, (0.05 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ({"mscale": 0.5}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_magnitude(fields: dict[str, float], expected: float) -> None:
    assert yarn_magnitude(RopeScaling("yarn", 4.0, 64, **fields)) == pytest.approx(expected)


def test_yarn_magnitude_scales_both_sines_and_cosines() -> None:
    rotary = RotaryEmbedding(4, 10_000.0, RopeScaling("yarn", 4.0, 64, attention_factor=2.0), CPU)
    rows = rotary.rows(torch.tensor([5]), torch.float32)
    torch.testing.assert_close(rows.cosine**2 + rows.signed_sine**2, torch.full((1, 1, 4), 4.0))


def test_dynamic_is_plain_within_the_trained_context_and_grows_beyond() -> None:
    scaling = RopeScaling("dynamic", 2.0, 64)
    plain = scaled_frequencies(16, 10_000.0, None)
    found = dynamic_frequencies(16, 10_000.0, scaling, torch.tensor([0, 63, 64, 127]))
    torch.testing.assert_close(found[0], plain)
    torch.testing.assert_close(found[1], plain)
    base = 10_000.0 * (2.0 * 128 / 64 - 1) ** (16 / 14)
    torch.testing.assert_close(found[3], 1 / base ** (torch.arange(0, 16, 2) / 16))
    assert torch.all(found[2][1:] < plain[1:])
