"""The approximate index: what was sent where, for as long as it may still be there."""

import hashlib

from atomesh.mesh.kv_index.approximate import ApproximateIndex
from atomesh.mesh.kv_index.combined import CombinedIndex
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import BlocksStored


def chain(name: str, length: int) -> list[BlockHash]:
    return [
        BlockHash(hashlib.blake2b(f"{name} {index}".encode(), digest_size=16).digest())
        for index in range(length)
    ]


def test_dispatched_prompt_is_believed_to_be_there_until_its_lifetime_ends() -> None:
    index, prompt = ApproximateIndex(lifetime_s=60.0), chain("p", 4)
    index.join("a", capacity=100)
    index.join("b", capacity=100)
    index.predict("a", prompt, 0.0)
    index.predict("b", prompt[:2], 30.0)

    assert index.match(prompt, 59.9) == {"a": MatchedBlocks(4), "b": MatchedBlocks(2)}
    assert index.match(prompt, 60.0) == {"b": MatchedBlocks(2)}
    assert index.match(prompt, 90.0) == {}
    assert len(index) == 0


def test_second_prompt_with_the_same_head_keeps_the_head_longer() -> None:
    index, prompt = ApproximateIndex(lifetime_s=60.0), chain("p", 4)
    index.join("a", capacity=100)
    index.predict("a", prompt, 0.0)
    index.predict("a", prompt[:3], 50.0)

    assert index.match(prompt, 100.0) == {"a": MatchedBlocks(3)}


def test_worker_is_believed_to_keep_no_more_than_fits_the_last_prompts_heads_first() -> None:
    index, old, new = ApproximateIndex(), chain("old", 4), chain("new", 4)
    index.join("a", capacity=6)
    index.predict("a", old, 0.0)
    index.predict("a", new, 1.0)

    assert index.match(old, 2.0) == {"a": MatchedBlocks(2)}
    assert index.match(new, 2.0) == {"a": MatchedBlocks(4)}
    index.check_invariants()


def test_dropped_worker_and_strangers_are_not_matched() -> None:
    index, prompt = ApproximateIndex(), chain("p", 4)
    index.join("a", capacity=6)
    index.predict("a", prompt, 0.0)
    index.predict("stranger", prompt, 0.0)
    index.drop("a")

    assert index.match(prompt, 0.0) == {}


def test_a_hundred_thousand_prompts_stay_within_the_cap() -> None:
    index = ApproximateIndex(max_blocks=5_000)
    index.join("a", capacity=100_000)
    for number in range(100_000):
        index.predict("a", chain(str(number), 1), number * 0.001)

    assert len(index) == 5_000
    assert index.match(chain("99999", 1), 100.0) == {"a": MatchedBlocks(1)}
    index.check_invariants()


def test_combined_index_asks_each_worker_in_its_own_way() -> None:
    both, prompt = CombinedIndex(KVIndex(), ApproximateIndex()), chain("p", 3)
    both.exact.join("says")
    both.approximate.join("silent", capacity=100)
    both.exact.apply("says", [BlocksStored(b"", list(prompt[:1]))])
    both.predict("silent", prompt, 0.0)
    both.predict("says", prompt[:2], 0.0)

    assert both.match(prompt, 1.0) == {"says": MatchedBlocks(2), "silent": MatchedBlocks(3)}
    both.drop("silent")
    both.drop("says")
    assert both.match(prompt, 1.0) == {}
