"""The exact index: who holds how much of a prompt, within bounded memory."""

import gc
import hashlib

import pytest

from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent, add_to_digest


def block(name: object) -> BlockHash:
    return BlockHash(hashlib.blake2b(repr(name).encode(), digest_size=16).digest())


def chain(name: str, length: int) -> list[BlockHash]:
    return [block((name, index)) for index in range(length)]


def stored(hashes: list[BlockHash], **fields: str) -> KVEvent:
    return BlocksStored(b"", list(hashes), **fields)  # type: ignore[arg-type]


def removed(*hashes: BlockHash) -> KVEvent:
    return BlocksRemoved(list(hashes))


def index_of(*workers: str, **options: float) -> KVIndex:
    index = KVIndex(**options)  # type: ignore[arg-type]
    for worker in workers:
        assert index.join(worker)
    return index


def test_each_worker_is_matched_up_to_its_own_first_missing_block() -> None:
    index, prompt = index_of("a", "b", "c"), chain("p", 5)
    index.apply("a", [stored(prompt)])
    index.apply("b", [stored(prompt[:2])])

    assert index.match([*prompt, block("new")], 0.0) == {"a": MatchedBlocks(5), "b": MatchedBlocks(2)}
    assert index.match(prompt[:1], 0.0) == {"a": MatchedBlocks(1), "b": MatchedBlocks(1)}
    assert index.match([block("new"), *prompt], 0.0) == {}
    assert index.match([], 0.0) == {}


def test_what_is_only_promised_is_matched_and_counted_apart() -> None:
    index, prompt = index_of("a", "b"), chain("p", 5)
    index.predict("a", prompt, 0.0)
    index.predict("b", prompt[:4], 0.0)
    index.apply("a", [stored(prompt[:2])])

    assert {name: (one.device, one.promised) for name, one in index.match(prompt, 0.0).items()} == {
        "a": (5, 3),
        "b": (4, 4),
    }
    index.apply("a", [stored(prompt)])
    assert index.match(prompt, 0.0)["a"].promised == 0


def test_a_hole_in_the_middle_of_a_chain_ends_the_match_there() -> None:
    index, prompt = index_of("a", "b"), chain("p", 6)
    for worker in ("a", "b"):
        index.apply(worker, [stored(prompt)])
    index.apply("a", [removed(prompt[2])])

    assert index.match(prompt, 0.0) == {"a": MatchedBlocks(2), "b": MatchedBlocks(6)}


def test_host_blocks_continue_the_run_and_device_blocks_after_them_count_as_host() -> None:
    index, prompt = index_of("a", "b", "c"), chain("p", 4)
    index.apply("a", [stored(prompt[:2]), stored(prompt[2:], tier="host")])
    index.apply("b", [stored(prompt[:1], tier="host"), stored(prompt[1:2])])
    index.apply("c", [stored(prompt[1:])])

    assert index.match(prompt, 0.0) == {"a": MatchedBlocks(2, 2), "b": MatchedBlocks(0, 2)}


def test_digest_is_that_of_what_is_held_in_each_tier_whatever_the_order() -> None:
    index, prompt = index_of("a", "b"), chain("p", 3)
    index.apply("a", [stored(prompt), stored(prompt[:1], tier="host"), removed(prompt[1])])
    index.apply("b", [stored(prompt[2:]), stored(prompt[:1]), stored(prompt[:1], tier="host")])

    expected = add_to_digest(add_to_digest(0, [prompt[0], prompt[2]]), prompt[:1], "host")
    assert index.digest("a") == index.digest("b") == expected


def test_what_is_stored_or_removed_twice_counts_once() -> None:
    index, prompt = index_of("a"), chain("p", 2)
    index.apply("a", [stored(prompt), stored(prompt), removed(prompt[0]), removed(prompt[0])])

    assert index.digest("a") == add_to_digest(0, prompt[1:])
    assert len(index) == 1


def test_cleared_worker_holds_nothing_and_others_are_untouched() -> None:
    index, prompt = index_of("a", "b"), chain("p", 3)
    for worker in ("a", "b"):
        index.apply(worker, [stored(prompt)])
    index.predict("a", chain("q", 3), 0.0)
    index.apply("a", [CacheCleared(), stored(prompt[:1])])

    assert index.match(prompt, 0.0) == {"a": MatchedBlocks(1), "b": MatchedBlocks(3)}
    assert index.match(chain("q", 3), 0.0) == {}
    assert index.digest("a") == add_to_digest(0, prompt[:1])


def test_dropped_worker_is_gone_at_once_and_its_blocks_with_it() -> None:
    index, prompt = index_of("a", "b"), chain("p", 2000)
    index.apply("a", [stored(prompt)])
    index.drop("a")

    assert index.match(prompt, 0.0) == {}
    assert "a" not in index
    for _ in range(4):
        index.apply("b", [])
    assert len(index) == 0


def test_a_bit_that_is_used_again_brings_nothing_of_its_former_worker() -> None:
    index, prompt = index_of("a", max_slots=1), chain("p", 3000)
    index.apply("a", [stored(prompt)])
    assert not index.join("b")
    index.drop("a")

    assert index.join("b")
    assert index.match(prompt, 0.0) == {}
    index.check_invariants()


def test_prediction_holds_until_it_expires() -> None:
    index, prompt = index_of("a", prediction_s=10.0), chain("p", 3)
    index.predict("a", prompt, 100.0)

    assert index.match(prompt, 109.9) == {"a": MatchedBlocks(3)}
    assert index.match(prompt, 110.0) == {}
    assert len(index) == 0


def test_second_prediction_lasts_longer() -> None:
    index, prompt = index_of("a", prediction_s=10.0), chain("p", 3)
    index.predict("a", prompt, 0.0)
    index.predict("a", prompt[:2], 5.0)

    assert index.match(prompt, 12.0) == {"a": MatchedBlocks(2)}
    assert index.match(prompt, 15.0) == {}


def test_confirmed_prediction_stays_and_is_in_the_digest_only_once_confirmed() -> None:
    index, prompt = index_of("a", prediction_s=10.0), chain("p", 3)
    index.predict("a", prompt, 0.0)
    assert index.digest("a") == 0
    index.apply("a", [stored(prompt[:2])])

    assert index.match(prompt, 100.0) == {"a": MatchedBlocks(2)}
    assert index.digest("a") == add_to_digest(0, prompt[:2])


def test_prediction_of_what_is_known_does_not_end_it() -> None:
    index, prompt = index_of("a", prediction_s=10.0), chain("p", 3)
    index.apply("a", [stored(prompt)])
    index.predict("a", prompt, 0.0)

    assert index.match(prompt, 100.0) == {"a": MatchedBlocks(3)}


def test_prediction_for_a_worker_nobody_knows_is_ignored() -> None:
    index = index_of("a")
    index.predict("stranger", chain("p", 3), 0.0)

    assert len(index) == 0


def test_snapshot_replaces_what_was_known_at_its_end_and_keeps_predictions() -> None:
    index, old, new, sent = index_of("a"), chain("old", 3), chain("new", 3), chain("sent", 2)
    index.apply("a", [stored(old)])
    index.predict("a", sent, 0.0)
    snapshot = index.begin_snapshot("a")
    assert snapshot is not None
    index.add_to_snapshot(snapshot, new, "device")
    assert index.match(new, 0.0) == {}
    assert index.match(old, 0.0) == {"a": MatchedBlocks(3)}
    index.end_snapshot(snapshot)

    assert index.match(old, 0.0) == {}
    assert index.match(new, 0.0) == {"a": MatchedBlocks(3)}
    assert index.match(sent, 9.9) == {"a": MatchedBlocks(2)}
    assert index.match(sent, 10.0) == {}
    assert index.digest("a") == add_to_digest(0, new)


def test_predictions_that_a_snapshot_keeps_end_before_those_that_were_made_later() -> None:
    index, first, second = index_of("a", "b", prediction_s=10.0), chain("first", 2), chain("second", 2)
    index.predict("a", first, 0.0)
    index.predict("b", second, 5.0)
    snapshot = index.begin_snapshot("a")
    assert snapshot is not None
    index.end_snapshot(snapshot)

    assert index.match(first, 9.9) == {"a": MatchedBlocks(2)}
    assert index.match(first, 10.0) == {}
    assert index.match(second, 14.9) == {"b": MatchedBlocks(2)}


def test_full_index_evicts_the_longest_undispatched_prompt_tail_first() -> None:
    index, first, second, third = index_of("a", max_blocks=6), *(chain(name, 3) for name in "123")
    index.apply("a", [stored(first), stored(second)])
    index.predict("a", first, 0.0)
    index.apply("a", [stored(third[:2])])

    assert index.match(first, 0.0) == {"a": MatchedBlocks(3)}
    assert index.match(second, 0.0) == {"a": MatchedBlocks(1)}
    assert index.match(third, 0.0) == {"a": MatchedBlocks(2)}
    assert len(index) == 6


def test_eviction_leaves_the_digest_that_the_worker_has() -> None:
    index, prompt = index_of("a", max_blocks=4), chain("p", 10)
    index.apply("a", [stored(prompt)])
    assert len(index) == 4
    assert index.digest("a") == add_to_digest(0, prompt)
    index.apply("a", [removed(*prompt[3:])])

    assert index.digest("a") == add_to_digest(0, prompt[:3])


def test_a_hundred_thousand_prompts_stay_within_the_cap() -> None:
    index = index_of("a", "b", max_blocks=10_000)
    for number in range(100_000):
        prompt = chain(str(number), 2)
        worker = "ab"[number % 2]
        index.predict(worker, prompt, number * 0.001)
        index.apply(worker, [stored(prompt)])

    assert len(index) == 10_000
    assert index.match(chain("99999", 2), 100.0) == {"b": MatchedBlocks(2)}
    assert index.match(chain("0", 2), 100.0) == {}
    index.check_invariants()


@pytest.mark.parametrize("salt", ["", "tenant-b"])
def test_another_tenants_prompt_is_found_nowhere(salt: str) -> None:
    hasher, index, tokens = BlockHasher(b"secret", "model", 4), index_of("a"), list(range(12))
    mine, theirs = hasher.chain(tokens, "tenant-a"), hasher.chain(tokens, salt)
    index.apply("a", [stored(mine)])
    index.predict("a", mine, 0.0)

    assert index.match(mine, 0.0) == {"a": MatchedBlocks(3)}
    assert index.match(theirs, 0.0) == {}


def test_the_garbage_collector_need_not_walk_through_it() -> None:
    index, prompt = index_of("a", "b"), chain("p", 100)
    index.apply("a", [stored(prompt)])
    index.predict("b", prompt, 0.0)

    held = [index._map._holders, index._map._by_age, *(slot.blocks for slot in index._slots.values())]
    assert not any(map(gc.is_tracked, held))
