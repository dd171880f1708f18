import struct

import pytest
import torch

from atomesh.engine.sampling.uniform import uniform


def test_its_numbers_are_fixed_for_ever() -> None:
    assert uniform(0, 0, 0) == 0.23653419058242275
    assert uniform(-1, 3, 7) == 0.8581556250163406


def test_every_part_of_the_key_matters() -> None:
    keys = [
        (seed, choice, index)
        for seed in (-(2**63), -1, 0, 1, 2**63 - 1)
        for choice in (0, 1, 127)
        for index in (0, 1, 4096)
    ]
    assert len({uniform(*key) for key in keys}) == len(keys)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_is_uniform_along_each_axis(axis: int) -> None:
    def along(i: int) -> float:
        key = [5, 5, 5]
        key[axis] = i
        return uniform(*key)

    values = torch.tensor([along(i) for i in range(8000)], dtype=torch.float64)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    observed = torch.histc(values, bins=32, min=0.0, max=1.0)
    statistic = ((observed - 250.0) ** 2 / 250.0).sum()
    p_value = torch.special.gammaincc(torch.tensor(31 / 2), statistic.float() / 2)
    assert p_value > 0.001


def test_neighbours_are_uncorrelated() -> None:
    values = torch.tensor([uniform(11, 0, i) for i in range(8000)], dtype=torch.float64)
    correlation = torch.corrcoef(torch.stack((values[:-1], values[1:])))[0, 1]
    assert abs(correlation) < 4 / 8000**0.5


def test_a_seed_beyond_int64_is_refused() -> None:
    with pytest.raises(struct.error):
        uniform(2**63, 0, 0)
