import hashlib
import math
import struct

import numpy as np
import pytest
import torch

from atomesh.engine.sampling.noise import exponentials


def test_its_numbers_are_fixed_for_ever() -> None:
    digest = hashlib.shake_256(b"atomesh sampling\0" + struct.pack("<qQQ", -1, 3, 7)).digest(16)
    uniforms = [((int.from_bytes(digest[at : at + 8], "little") >> 12) + 0.5) / 2**52 for at in (0, 8)]
    assert exponentials(-1, 3, 7, 2).tolist() == pytest.approx([-math.log(u) for u in uniforms], rel=1e-15)
    assert exponentials(0, 0, 0, 2).tolist() == pytest.approx(
        [1.6755546453875645, 0.0675899538830159], rel=1e-15
    )


def test_more_of_them_begin_with_the_same() -> None:
    assert exponentials(1, 2, 3, 500)[:20].tolist() == exponentials(1, 2, 3, 20).tolist()


def test_every_part_of_the_key_matters() -> None:
    keys = [
        (seed, choice, index)
        for seed in (-(2**63), -1, 0, 1, 2**63 - 1)
        for choice in (0, 1, 127)
        for index in (0, 1, 4096)
    ]
    assert len({exponentials(*key, 1).item() for key in keys}) == len(keys)


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_is_exponential_along_each_axis(axis: int | None) -> None:
    if axis is None:
        values = exponentials(5, 5, 5, 8000)
    else:
        keys = [[i if place == axis else 5 for place in range(3)] for i in range(8000)]
        values = np.array([exponentials(*key, 1).item() for key in keys])
    assert values.min() > 0.0
    observed = torch.histc(torch.from_numpy(np.exp(-values)), bins=32, min=0.0, max=1.0)
    statistic = ((observed - 250.0) ** 2 / 250.0).sum()
    p_value = torch.special.gammaincc(torch.tensor(31 / 2), statistic.float() / 2)
    assert p_value > 0.001


def test_neighbours_are_uncorrelated() -> None:
    values = np.exp([-exponentials(11, 0, i, 1).item() for i in range(8000)])
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / 8000**0.5


def test_a_seed_beyond_int64_is_refused() -> None:
    with pytest.raises(struct.error):
        exponentials(2**63, 0, 0, 1)
