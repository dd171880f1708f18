"""From llguidance's bits to the sampler's mask."""

import numpy as np
import pytest

from atomesh.engine.structured_output.allowed_tokens import read_allowed


def bits(ids: set[int], words: int = 2) -> np.ndarray:
    made = np.zeros(words, dtype=np.uint32)
    for token_id in ids:
        made[token_id // 32] |= np.uint32(1 << token_id % 32)
    return made.view(np.int32)


def ids_of(ids: set[int], vocab_size: int, eos_ids: tuple[int, ...], *, ends: bool) -> tuple[set[int], bool]:
    found = read_allowed(bits(ids), vocab_size, eos_ids, ends=ends)
    assert found.mask.shape == (vocab_size,)
    return set(found.mask.nonzero().flatten().tolist()), found.is_over


@pytest.mark.parametrize("vocab_size", [40, 64, 70, 200])
def test_what_is_beyond_the_bits_may_not_follow(vocab_size: int) -> None:
    assert ids_of({0, 31, 32, 39}, vocab_size, (), ends=True) == ({0, 31, 32, 39}, False)


def test_what_the_model_does_not_have_is_left_out() -> None:
    assert ids_of({3, 50}, 40, (), ends=True) == ({3}, False)


def test_the_end_is_allowed_where_it_ends_the_answer() -> None:
    assert ids_of({3, 9}, 40, (9, 11), ends=True) == ({3, 9}, False)
    assert ids_of({3, 9}, 40, (9, 11), ends=False) == ({3}, False)


@pytest.mark.parametrize("ends", [True, False])
def test_where_only_the_end_is_left_it_is_over(ends: bool) -> None:
    assert ids_of({9, 11}, 40, (9, 11), ends=ends) == ({9, 11}, True)
    assert ids_of({63}, 40, (), ends=ends) == (set(), True)
