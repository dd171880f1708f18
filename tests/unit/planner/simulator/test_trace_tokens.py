"""Prompts made of block ids alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.planner.simulator.trace_tokens import TraceHasher, TraceTokens, hash_of_id

BLOCK = 4


@given(st.lists(st.integers(0, 99), min_size=1, max_size=6), st.integers(1, BLOCK), st.data())
def test_reads_like_the_list_of_its_tokens(ids: list[int], last: int, data: st.DataObject) -> None:
    num_tokens = (len(ids) - 1) * BLOCK + last
    plain = [ids[position // BLOCK] for position in range(num_tokens)]
    tokens = TraceTokens(ids, num_tokens, BLOCK)
    start, end = sorted(data.draw(st.tuples(st.integers(0, num_tokens), st.integers(0, num_tokens))))

    assert list(tokens) == plain
    assert list(tokens[start:end]) == plain[start:end]
    assert len(tokens[start:end]) == end - start
    assert list(tokens[start:][: end - start]) == plain[start:end]
    assert tokens[-1] == plain[-1]


def test_what_is_outside_is_refused() -> None:
    tokens = TraceTokens([7, 8], 5, BLOCK)

    with pytest.raises(IndexError, match="position 5 is not among 5 tokens"):
        tokens[5]
    with pytest.raises(ValueError, match="9 tokens have 3 blocks of 4, not 2"):
        TraceTokens([7, 8], 9, BLOCK)


def test_a_block_is_named_by_its_id() -> None:
    hasher = TraceHasher(BLOCK)
    tokens = TraceTokens([7, 8], 8, BLOCK)
    first = hasher.extend(hasher.root(), tokens[:4])

    assert (first, hasher.extend(first, tokens[4:8])) == (hash_of_id(7), hash_of_id(8))
    assert len({hasher.root(), first, hasher.extend(first, tokens[4:8])}) == 3
    assert len(first) == len(hasher.root()) == 16
