"""Traffic that is made up: what it shares, and that it can be run."""

from random import Random

import pytest

from atomesh.planner.simulator.synthetic import (
    BLOCK_TOKENS,
    MEAN_TURNS,
    NUM_TENANTS,
    SYNTHETIC,
    make_chats,
    make_tenants,
)
from atomesh.planner.simulator.workload import make_workload


@pytest.mark.parametrize("kind", SYNTHETIC)
def test_a_block_always_follows_the_same_blocks(kind: str) -> None:
    """And the same seed gives the same traffic, ready to run."""
    arrivals = SYNTHETIC[kind](500, Random(1))

    before: dict[int, tuple[int, ...]] = {}
    for arrival in arrivals:
        for depth, block in enumerate(arrival.block_ids):
            assert before.setdefault(block, arrival.block_ids[:depth]) == arrival.block_ids[:depth]
    assert arrivals == SYNTHETIC[kind](500, Random(1))
    assert len(make_workload(arrivals, BLOCK_TOKENS, Random(0)).arrivals) == 500


def test_tenants_share_a_beginning_and_the_first_sends_most() -> None:
    arrivals = make_tenants(2000, Random(0))

    firsts = [arrival.block_ids[0] for arrival in arrivals]
    counts = sorted((firsts.count(first) for first in set(firsts)), reverse=True)
    assert 0.8 * NUM_TENANTS < len(counts) <= NUM_TENANTS
    assert counts[0] / 2000 == pytest.approx(1 / sum(1 / k for k in range(1, NUM_TENANTS + 1)), rel=0.15)
    assert arrivals[-1].at_s == pytest.approx(2000, rel=0.1)


def test_turns_of_a_chat_repeat_what_was_said_and_chats_share_nothing() -> None:
    arrivals = make_chats(3000, Random(0))

    chats: dict[int, list[int]] = {}
    for arrival in arrivals:
        chats.setdefault(arrival.block_ids[0], []).append(arrival.num_tokens)
    short = [turns for turns in chats.values() if len(turns) == 1]
    assert all(turns == sorted(turns) for turns in chats.values())
    assert sum(map(len, chats.values())) / len(chats) == pytest.approx(MEAN_TURNS, rel=0.2)
    assert 0.1 < len(short) / len(chats) < 0.25  # one turn in MEAN_TURNS is the last
    assert [arrival.at_s for arrival in arrivals] == sorted(arrival.at_s for arrival in arrivals)
