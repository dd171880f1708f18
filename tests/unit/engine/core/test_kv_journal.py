"""What the prefix cache's journal says, and that it is bounded."""

import hashlib

import pytest

from atomesh.engine.core import kv_journal
from atomesh.engine.core.prefix_cache import PrefixCache
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KVEvents, add_to_digest


def block_hash(number: int) -> BlockHash:
    return BlockHash(hashlib.blake2b(str(number).encode(), digest_size=16).digest())


A, B, C, D = map(block_hash, range(4))


def test_runs_of_blocks_are_told_together_with_what_they_follow() -> None:
    cache = PrefixCache()
    cache.insert(A, 1)
    cache.insert(B, 2, before=1)
    cache.insert(C, 3, before=1)
    cache.insert(D, 4)

    assert cache.journal.take() == KVEvents(
        1,
        add_to_digest(0, [A, B, C, D]),
        [BlocksStored(b"", [A, B]), BlocksStored(A, [C]), BlocksStored(b"", [D])],
    )


def test_order_is_kept_where_a_block_goes_and_comes_again() -> None:
    cache = PrefixCache()
    cache.insert(A, 1)
    cache.insert(B, 2)
    cache.forget(2)
    cache.insert(B, 3)
    cache.insert(C, 4)
    cache.forget(3)
    cache.forget(4)

    assert cache.journal.take().events == [
        BlocksStored(b"", [A]),
        BlocksStored(b"", [B]),
        BlocksRemoved([B]),
        BlocksStored(b"", [B]),
        BlocksStored(b"", [C]),
        BlocksRemoved([B, C]),
    ]


def test_sequence_grows_with_events_only() -> None:
    cache = PrefixCache()
    assert cache.journal.take() == cache.journal.take() == KVEvents(0, 0)
    cache.insert(A, 1)

    assert cache.journal.take() == KVEvents(1, add_to_digest(0, [A]), [BlocksStored(b"", [A])])
    assert cache.journal.take() == KVEvents(1, add_to_digest(0, [A]))


def test_empty_cache_is_told_in_a_word_and_what_was_before_is_not_told() -> None:
    cache = PrefixCache()
    cache.insert(A, 1)
    cache.insert(B, 2)
    cache.forget(1)
    cache.forget(2)
    cache.insert(C, 3)

    assert cache.journal.take() == KVEvents(
        1, add_to_digest(0, [C]), [CacheCleared(), BlocksStored(b"", [C])]
    )


def test_too_much_at_once_is_not_told_but_a_number_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_journal, "MAX_PENDING_HASHES", 3)
    cache = PrefixCache()
    for number in range(4):
        cache.insert(block_hash(number), number)
    told = cache.journal.take()
    cache.insert(block_hash(4), 4)

    assert told == KVEvents(2, add_to_digest(0, map(block_hash, range(4))))
    assert cache.journal.take().sequence == 3


def test_nobody_who_listens_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_journal, "MAX_PENDING_HASHES", 3)
    cache = PrefixCache()
    for number in range(100):
        cache.insert(block_hash(number), number)

    assert cache.journal._pending == []
    for number in range(100):
        cache.forget(number)
    assert cache.journal.take() == KVEvents(1, 0, [CacheCleared()])


def test_snapshot_says_all_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_journal, "MAX_SNAPSHOT_HASHES", 2)
    cache = PrefixCache()
    for number in range(5):
        cache.insert(block_hash(number), number)
    told = cache.journal.take()
    parts = cache.journal.snapshot()

    assert [len(part.hashes) for part in parts] == [2, 2, 1]
    assert [part.is_last for part in parts] == [False, False, True]
    assert {one for part in parts for one in part.hashes} == set(map(block_hash, range(5)))
    assert {(part.sequence, part.digest) for part in parts} == {(told.sequence, told.digest)}


def test_snapshot_of_an_empty_cache_is_one_empty_part() -> None:
    (part,) = PrefixCache().journal.snapshot()

    assert (part.hashes, part.is_last, part.sequence, part.digest) == ([], True, 0, 0)


def test_snapshot_between_events_is_refused() -> None:
    cache = PrefixCache()
    cache.insert(A, 1)

    with pytest.raises(ValueError, match="take those first"):
        cache.journal.snapshot()
