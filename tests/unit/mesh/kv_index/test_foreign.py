"""Another engine's events under our hashes: exact where they say enough, left out where they do not."""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomesh.mesh.kv_index.foreign import PIECE, Translator
from atomesh.mesh.kv_index.foreign_order import ForeignFeed
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored
from atomesh.protocol.vllm_kv_events import (
    ForeignBatch,
    ForeignCleared,
    ForeignEvent,
    ForeignRemoved,
    ForeignStored,
)

HASHER = BlockHasher(b"secret", "model", 2)
TOKENS = [1, 2, 3, 4, 5, 6]


class Heard:
    """A worker's events, as far as the index knows of them."""

    def __init__(self, **options: bool | int) -> None:
        self.index = KVIndex()
        self.index.join("v")
        self.translator = Translator(HASHER, **options)  # type: ignore[arg-type]
        self.feed = ForeignFeed(self.index, "v", self.translator)

    def says(self, *events: ForeignEvent) -> None:
        self.index.apply("v", self.translator.translate(events))

    def held(self, salt: str = "", adapter: str = "", tokens: list[int] = TOKENS) -> MatchedBlocks:
        return self.of_chain(HASHER.chain(tokens, salt, adapter))

    def of_chain(self, chain: list[BlockHash]) -> MatchedBlocks:
        return self.index.match(chain, 0.0).get("v", MatchedBlocks())


def stored(hashes: list[int], parent: int | None, tokens: list[int], **fields: object) -> ForeignStored:
    said = {"extra_keys": [None] * len(hashes), "block_size": 2, "medium": "GPU", **fields}
    return ForeignStored(block_hashes=list(hashes), parent_block_hash=parent, token_ids=tokens, **said)  # type: ignore[arg-type]


def test_a_chain_in_pieces_is_found_by_our_hashes_of_its_tokens() -> None:
    heard = Heard()
    heard.says(stored([71, 72], None, TOKENS[:4]), stored([73], 72, TOKENS[4:]))

    assert heard.held() == MatchedBlocks(3)
    heard.says(ForeignRemoved([72], "GPU"))
    assert heard.held() == MatchedBlocks(1)
    heard.says(ForeignCleared())
    assert heard.held() == MatchedBlocks(0)


def test_a_block_held_twice_is_gone_with_its_last_copy() -> None:
    heard = Heard()
    heard.says(stored([71], None, TOKENS[:2]), stored([71], None, TOKENS[:2]), ForeignRemoved([71], "GPU"))
    assert heard.held() == MatchedBlocks(1)
    heard.says(ForeignRemoved([71], "GPU"))

    assert heard.held() == MatchedBlocks(0)


def test_tiers_are_kept_apart() -> None:
    heard = Heard()
    heard.says(stored([71, 72], None, TOKENS[:4]), stored([71, 72], None, TOKENS[:4], medium="CPU"))
    heard.says(ForeignRemoved([72], "GPU"))

    assert heard.held() == MatchedBlocks(1, 1)


@pytest.mark.parametrize("key", ["tenant", {"type": "cache_salt", "salt": "tenant"}])
def test_a_named_salt_is_in_the_hash_of_all_that_follows(key: object) -> None:
    heard = Heard()
    heard.says(stored([71, 72], None, TOKENS[:4], extra_keys=[[key], None]), stored([73], 72, TOKENS[4:]))

    assert heard.held(salt="tenant") == MatchedBlocks(3)
    assert heard.held() == MatchedBlocks(0)


@pytest.mark.parametrize("key", ["fr", {"type": "lora", "name": "fr"}])
def test_an_adapter_is_in_the_hash_with_a_salt_and_without(key: object) -> None:
    heard = Heard()
    heard.says(
        stored([71, 72], None, TOKENS[:4], lora_name="fr", extra_keys=[[key], [key]]),
        stored([81, 82], None, TOKENS[:4], lora_name="fr", extra_keys=[[key, "tenant"], [key]]),
        stored([73], 72, TOKENS[4:], lora_name="fr", extra_keys=[[key]]),
    )

    assert heard.held(adapter="fr") == MatchedBlocks(3)
    assert heard.held(adapter="fr", salt="tenant") == MatchedBlocks(2)
    assert heard.held() == MatchedBlocks(0)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored([71], None, TOKENS[:2], extra_keys=None), "unsaid"),
        (stored([71], 99, TOKENS[:2]), "parent"),
        (stored([71], None, TOKENS[:3]), "tokens"),
        (stored([71], None, [], block_size=0), "tokens"),
        (stored([71], None, TOKENS[:2], medium="STORAGE"), "elsewhere"),
        (stored([71], None, TOKENS[:2], locality="REMOTE"), "elsewhere"),
        (stored([71], None, TOKENS[:2], group_idx=0, kv_cache_spec_kind="sliding_window"), "group"),
        (stored([71], None, TOKENS[:2], lora_id=3), "parent"),
        (stored([71], None, TOKENS[:2], extra_keys=[["image", 0]]), "parent"),
        (stored([71], None, TOKENS[:2], extra_keys=[[{"type": "mm", "hash": "x"}]]), "parent"),
        (stored([71], None, TOKENS[:2], extra_keys=[[b"embeddings"]]), "parent"),
        (stored([71], None, TOKENS[:2], extra_keys=[]), "keys"),
        (stored([71], None, TOKENS[:2], group_idx=1), "group"),
    ],
)
def test_what_is_not_known_for_sure_is_left_out_and_counted(event: ForeignStored, reason: str) -> None:
    heard = Heard()
    heard.says(event)

    assert len(heard.index) == 0
    assert heard.translator.left_out == {reason: 1}


def test_blocks_of_several_sizes_bring_ours_that_end_in_them() -> None:
    heard = Heard()
    heard.says(stored([71, 72, 73], None, TOKENS[:3], block_size=1))
    assert heard.held() == MatchedBlocks(1)
    heard.says(stored([74], 73, TOKENS[3:6], block_size=3))
    assert heard.held() == MatchedBlocks(3)
    heard.says(ForeignRemoved([73]))
    assert heard.held() == MatchedBlocks(3)
    heard.says(ForeignRemoved([74]))
    assert heard.held() == MatchedBlocks(1)
    heard.says(ForeignRemoved([72, 71]))
    assert heard.held() == MatchedBlocks(0)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    gone=st.integers(0, 8),
)
def test_any_sizes_lead_to_the_chain_of_their_tokens(sizes: list[int], gone: int) -> None:
    heard, tokens = Heard(), list(range(sum(sizes)))
    for number, size in enumerate(sizes):
        start = sum(sizes[:number])
        parent = 100 + number - 1 if number else None
        heard.says(stored([100 + number], parent, tokens[start : start + size], block_size=size))
    left = sizes[: max(0, len(sizes) - gone)]
    heard.says(ForeignRemoved([100 + number for number in range(len(left), len(sizes))]))

    assert heard.held(tokens=tokens) == MatchedBlocks(sum(left) // 2)
    assert len(heard.index) == sum(left) // 2
    heard.index.check_invariants()


def test_of_several_groups_of_layers_the_first_that_sees_all_is_followed() -> None:
    heard = Heard()
    heard.says(
        stored([71], None, TOKENS[:2], group_idx=0, kv_cache_spec_kind="mamba"),
        stored([71], None, TOKENS[:2], group_idx=1, kv_cache_spec_kind="full_attention"),
        stored([71], None, TOKENS[:2], group_idx=2, kv_cache_spec_kind="full_attention"),
        ForeignRemoved([71], "GPU", 0),
        ForeignRemoved([71], "GPU", 2),
    )
    assert heard.held() == MatchedBlocks(1)
    assert heard.translator.left_out == {"group": 2}
    heard.says(ForeignRemoved([71], "GPU", 1))
    assert heard.held() == MatchedBlocks(0)


def test_what_lies_in_common_storage_is_neither_stored_nor_removed() -> None:
    heard = Heard()
    heard.says(stored([71], None, TOKENS[:2]), ForeignRemoved([71], "STORAGE"))
    assert heard.held() == MatchedBlocks(1)
    heard.says(ForeignRemoved([71], "GPU", locality="REMOTE"))
    assert heard.held() == MatchedBlocks(1)


def test_a_name_of_two_different_blocks_is_believed_of_the_first_alone() -> None:
    heard = Heard()
    heard.says(stored([71, 72], None, TOKENS[:4]), stored([81, 72, 83], None, [9, 9, *TOKENS[2:6]]))

    assert heard.held() == MatchedBlocks(2)
    assert heard.held(tokens=[9, 9, *TOKENS[2:6]]) == MatchedBlocks(1)
    assert heard.translator.left_out == {"ambiguous": 2}


def test_sglang_names_the_salt_once_for_all() -> None:
    heard = Heard()
    heard.says(
        stored([-71, 72], None, TOKENS[:4], extra_keys=None, cache_salt="tenant", medium="GPU"),
        stored([73], 72, TOKENS[4:], extra_keys=None, cache_salt="tenant", medium="CPU_PINNED"),
    )

    assert heard.held(salt="tenant") == MatchedBlocks(2, 1)
    assert heard.held() == MatchedBlocks(0)


def test_a_run_is_taken_as_far_as_its_keys_are_known() -> None:
    heard = Heard()
    heard.says(stored([71, 72, 73], None, TOKENS, extra_keys=[None, ["image"], None]))

    assert heard.held() == MatchedBlocks(1)
    assert heard.translator.left_out == {"keys": 2}


def test_an_engine_that_has_no_salts_need_not_say_so() -> None:
    heard = Heard(is_unsalted=True)
    heard.says(stored([71], None, TOKENS[:2], extra_keys=None))

    assert heard.held() == MatchedBlocks(1)


def test_memory_is_bounded_by_beginning_anew() -> None:
    heard = Heard(max_hashes=4)
    heard.says(stored([71, 72, 73], None, TOKENS))
    heard.says(stored([81, 82], None, [9, 9, 8, 8]))

    assert heard.held() == MatchedBlocks(0)
    assert heard.held(tokens=[9, 9, 8, 8]) == MatchedBlocks(2)
    assert len(heard.index) == 2
    heard.says(ForeignRemoved([71], "GPU"))


def test_memory_is_bounded_however_large_their_blocks_are() -> None:
    """A block of theirs that brings three of ours counts as three."""
    heard = Heard(max_hashes=4)
    heard.says(stored([71], None, TOKENS, block_size=6))
    heard.says(ForeignRemoved([71], "GPU"), stored([72], None, TOKENS, block_size=6))
    assert len(heard.index) == 3
    heard.says(stored([81], None, [9, 9, 8, 8], block_size=4))

    assert heard.held() == MatchedBlocks(0)
    assert heard.held(tokens=[9, 9, 8, 8]) == MatchedBlocks(2)
    assert len(heard.index) == 2


def test_a_large_batch_is_taken_in_piece_by_piece() -> None:
    """Each so small that a gateway's other work does not wait for it."""
    tokens = list(range(5 * PIECE))
    hashes = list(range(len(tokens) // 2))
    events = [stored(hashes, None, tokens), ForeignRemoved(hashes[PIECE:], "GPU")]
    pieces = list(Translator(HASHER).pieces(events))
    assert list(chain.from_iterable(pieces)) == Translator(HASHER).translate(events)
    sizes = [
        sum(len(one.hashes) for one in piece if isinstance(one, BlocksStored | BlocksRemoved))
        for piece in pieces
    ]
    assert max(sizes) <= PIECE
    assert sum(sizes) == len(hashes) + len(hashes[PIECE:])

    heard = Heard()
    heard.feed.hear(0, ForeignBatch(1.0, tuple(events)))
    assert len(heard.index) == PIECE // 2
    while heard.feed.work_on():
        pass
    assert len(heard.index) == PIECE
    assert heard.held(tokens=tokens) == MatchedBlocks(PIECE)


def test_what_is_left_of_a_large_batch_comes_before_the_next() -> None:
    tokens = list(range(3 * PIECE))
    heard = Heard()
    heard.feed.hear(0, batch(1.0, stored(list(range(len(tokens) // 2)), None, tokens)))
    heard.feed.hear(1, batch(2.0, ForeignRemoved([len(tokens) // 2 - 1], "GPU")))
    assert heard.held(tokens=tokens) == MatchedBlocks(len(tokens) // 2 - 1)
    assert not heard.feed.work_on()


def batch(time: float, *events: ForeignEvent) -> ForeignBatch:
    return ForeignBatch(time, events)


FIRST = batch(1.0, stored([71], None, TOKENS[:2]))
SECOND = batch(2.0, stored([72], 71, TOKENS[2:4]))
THIRD = batch(3.0, stored([73], 72, TOKENS[4:]))


def test_missing_batches_are_asked_for_and_taken_before_the_one_that_showed_it() -> None:
    heard = Heard()
    assert heard.feed.hear(0, FIRST) is None
    assert heard.feed.hear(2, THIRD) == 1
    heard.feed.resume(1, SECOND)
    heard.feed.resume(2, THIRD)
    heard.feed.resume(2, THIRD)

    assert heard.held() == MatchedBlocks(3)
    assert heard.feed.losses == 0
    assert heard.feed.hear(1, SECOND) is None
    assert heard.held() == MatchedBlocks(3)


def test_what_cannot_be_replayed_is_forgotten_with_all_before_it() -> None:
    heard = Heard()
    heard.feed.hear(0, FIRST)
    assert heard.feed.hear(5, THIRD) == 1
    heard.feed.resume(5, batch(5.0, stored([81], None, [9, 9])))

    assert heard.held() == MatchedBlocks(0)
    assert heard.held(tokens=[9, 9]) == MatchedBlocks(1)
    assert (heard.feed.losses, heard.index.counts.losses) == (1, 1)
    assert heard.feed.hear(6, batch(6.0, ForeignRemoved([81]))) is None
    assert len(heard.index) == 0


def test_another_life_of_the_engine_begins_with_nothing() -> None:
    heard = Heard()
    heard.feed.hear(0, FIRST)
    heard.feed.hear(1, SECOND)
    assert heard.feed.hear(0, batch(9.0, stored([81], None, [9, 9]))) is None

    assert heard.held() == MatchedBlocks(0)
    assert heard.held(tokens=[9, 9]) == MatchedBlocks(1)


def test_the_last_batch_replayed_with_another_time_gives_another_life_away() -> None:
    heard = Heard()
    heard.feed.hear(0, FIRST)
    heard.feed.hear(1, SECOND)
    assert heard.feed.hear(4, batch(9.0)) == 2
    assert heard.feed.replay_from == 1
    assert heard.feed.resume(1, SECOND) is None
    assert heard.feed.resume(1, batch(8.0)) == 0
    assert (heard.held(), heard.feed.replay_from) == (MatchedBlocks(0), 0)
    for sequence in range(4):
        assert heard.feed.resume(sequence, batch(7.0 + sequence / 4, stored([90], None, [9, 9]))) is None
    assert heard.feed.resume(4, batch(9.0)) is None

    assert (heard.held(tokens=[9, 9]), heard.feed.losses) == (MatchedBlocks(1), 1)


def test_who_comes_late_has_lost_nothing_that_was_known() -> None:
    heard = Heard()
    assert heard.feed.hear(7, THIRD) == 0
    heard.feed.resume(7, batch(3.0, stored([81], None, [9, 9]), stored([73], 72, TOKENS[4:])))

    assert (heard.feed.losses, heard.feed.next_sequence) == (0, 8)
    assert heard.held(tokens=[9, 9]) == MatchedBlocks(1)
    assert heard.feed.left_out("parent") == heard.index.counts.left_out["parent"] == 1
    assert heard.index.counts.events == {"stored": 1}
