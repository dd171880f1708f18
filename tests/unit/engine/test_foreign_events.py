"""Our events in vLLM's words, and back into an index by whoever reads them."""

from collections.abc import Iterable

from atomesh.engine.core.prefix_cache import PrefixCache
from atomesh.engine.foreign_events import ForeignWords, number_of
from atomesh.engine.recording_hasher import RecordingHasher
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.vllm_kv_events import ForeignCleared, ForeignEvent, ForeignRemoved, ForeignStored

TOKENS = [1, 2, 3, 4, 5, 6]


class Publisher:
    def __init__(self, max_untold: int = 100) -> None:
        self.hasher = RecordingHasher(b"secret", "model", 2, max_blocks=100)
        self.cache = PrefixCache()
        self.words = ForeignWords(self.hasher.recall, 2, max_untold)

    def caches(self, hashes: Iterable[BlockHash], first_block: int = 0) -> None:
        for block, one in enumerate(hashes, first_block):
            self.cache.insert(one, block, before=block - 1 if block > first_block else None)

    def says(self) -> list[ForeignEvent]:
        return self.words.of(self.cache.journal.take(), lambda: self.cache._block_by_hash)


def test_a_run_is_told_with_its_tokens_and_parent() -> None:
    publisher = Publisher()
    chain = publisher.hasher.chain(TOKENS)
    publisher.caches(chain[:2])
    told = publisher.says()
    publisher.cache.insert(chain[2], 2, before=1)
    numbers: list[int | bytes] = [number_of(one) for one in chain]

    assert told == [
        ForeignStored(numbers[:2], TOKENS[:4], 2, medium="GPU", extra_keys=[None, None]),
    ]
    assert publisher.says() == [
        ForeignStored(
            numbers[2:], TOKENS[4:], 2, parent_block_hash=numbers[1], medium="GPU", extra_keys=[None]
        )
    ]
    assert publisher.says() == []


def test_a_salt_is_named_with_the_first_block() -> None:
    publisher = Publisher()
    publisher.caches(publisher.hasher.chain(TOKENS, salt="tenant"))
    [told] = publisher.says()

    assert isinstance(told, ForeignStored)
    assert told.extra_keys == [["tenant"], None, None]


def test_removals_and_an_empty_cache_are_told() -> None:
    publisher = Publisher()
    chain = publisher.hasher.chain(TOKENS)
    publisher.caches(chain)
    publisher.says()
    publisher.cache.forget(2)
    assert publisher.says() == [ForeignRemoved([number_of(chain[2])], "GPU")]
    publisher.cache.forget(1)
    publisher.cache.forget(0)

    assert publisher.says() == [ForeignCleared()]


def test_blocks_that_came_from_elsewhere_are_told_once_their_tokens_are_known_and_not_removed_before() -> (
    None
):
    publisher, elsewhere = Publisher(), RecordingHasher(b"secret", "model", 2, max_blocks=100)
    chain = elsewhere.chain(TOKENS)
    publisher.caches(chain)
    assert publisher.says() == []
    publisher.cache.forget(2)
    assert publisher.says() == []
    publisher.hasher.chain(TOKENS)
    [told] = publisher.says()

    assert isinstance(told, ForeignStored)
    assert told.token_ids == TOKENS[:4]
    publisher.cache.forget(1)
    assert publisher.says() == [ForeignRemoved([number_of(chain[1])], "GPU")]


def test_what_is_never_known_costs_bounded_memory() -> None:
    publisher, elsewhere = Publisher(max_untold=2), RecordingHasher(b"secret", "model", 2, max_blocks=100)
    publisher.caches(elsewhere.chain(TOKENS))
    publisher.says()

    assert len(publisher.words._untold) == 2


def test_too_much_at_once_is_told_anew_parents_first() -> None:
    publisher = Publisher()
    chain = publisher.hasher.chain(TOKENS)
    publisher.cache.insert(chain[2], 2)
    publisher.cache.insert(chain[1], 1)
    publisher.cache.insert(chain[0], 0)
    publisher.cache.journal._is_overflown = True
    cleared, told = publisher.says()

    assert cleared == ForeignCleared()
    assert isinstance(told, ForeignStored)
    assert told.token_ids == TOKENS
    assert told.parent_block_hash is None


def test_the_recorder_remembers_the_last_blocks_only() -> None:
    hasher = RecordingHasher(b"secret", "model", 2, max_blocks=2)
    chain = hasher.chain(TOKENS)

    assert hasher.recall(chain[0]) is None
    assert hasher.recall(chain[2]) is not None
    assert chain == RecordingHasher(b"secret", "model", 2, max_blocks=2).chain(TOKENS)
