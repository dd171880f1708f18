"""vLLM's KV events, byte for byte."""

import msgspec
import pytest
from msgspec import structs

from atomesh.protocol.vllm_kv_events import (
    ForeignBatch,
    ForeignCleared,
    ForeignFormatError,
    ForeignRemoved,
    ForeignStored,
    decode_batch,
    encode_batch,
)

STORED = ForeignStored(
    block_hashes=[2**64 - 1, 7],
    token_ids=[1, 2, 3, 4],
    block_size=2,
    parent_block_hash=5,
    medium="GPU",
    extra_keys=[None, None],
)


def pack(*events: object, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([12.5, list(events), rank])


# What vLLM 0.32's own encoder makes of a batch: a salted run, one behind it with an adapter in host memory,
# an offloaded block of another group without its tokens, a removal, an empty cache.
RECORDED = bytes.fromhex(
    "93cb41d954fc40200000958ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c420000102030405"
    "060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc420202122232425262728292a2b2c2d2e2f30313233343536"
    "3738393a3b3c3d3e3fb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73"
    "697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a67465"
    "6e616e74c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e8d"
    "a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739107b1706172656e745f626c6f636b5f68617368c4"
    "20202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fa9746f6b656e5f696473920506aa626c6f63"
    "6b5f73697a6502a76c6f72615f696403a66d656469756da3435055a96c6f72615f6e616d65a26672aa65787472615f6b657973"
    "9191a26672a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6ea8"
    "6c6f63616c697479a54c4f43414caa73657373696f6e5f6964a1738aa474797065ab426c6f636b53746f726564ac626c6f636b"
    "5f6861736865739108b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f73697a6500"
    "a76c6f72615f6964c0a66d656469756da753544f52414745a96c6f72615f6e616d65c0a967726f75705f69647801a86c6f6361"
    "6c697479a652454d4f544584a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c4200001020304"
    "05060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa66d656469756da3475055a967726f75705f6964780081a4"
    "74797065b0416c6c426c6f636b73436c656172656400"
)
# Ours, which vLLM 0.32's own decoder has read as the same events.
READ_BY_VLLM = bytes.fromhex(
    "93cb40290000000000009389a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cfffffffffffffffff"
    "07b1706172656e745f626c6f636b5f6861736805a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6502a76c6f72"
    "615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a674656e616e74c083a474"
    "797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d656469756da347505581a474797065b0416c"
    "6c426c6f636b73436c656172656403"
)


def test_what_vllm_has_encoded_is_read() -> None:
    first, second = bytes(range(32)), bytes(range(32, 64))

    assert decode_batch(RECORDED) == ForeignBatch(
        1_700_000_000.5,
        (
            ForeignStored(
                block_hashes=[first, second],
                token_ids=[1, 2, 3, 4],
                block_size=2,
                medium="GPU",
                extra_keys=[["tenant"], None],
                group_idx=0,
                kv_cache_spec_kind="full_attention",
            ),
            ForeignStored(
                block_hashes=[7],
                token_ids=[5, 6],
                block_size=2,
                parent_block_hash=second,
                lora_id=3,
                medium="CPU",
                lora_name="fr",
                extra_keys=[["fr"]],
                group_idx=0,
                kv_cache_spec_kind="full_attention",
                locality="LOCAL",
            ),
            ForeignStored([8], [], 0, medium="STORAGE", group_idx=1, locality="REMOTE"),
            ForeignRemoved([first], "GPU", 0),
            ForeignCleared(),
        ),
    )


def test_what_we_write_is_what_vllm_reads() -> None:
    events = [structs.replace(STORED, extra_keys=[["tenant"], None]), ForeignRemoved([7], "GPU")]

    assert encode_batch(12.5, [*events, ForeignCleared()], rank=3) == READ_BY_VLLM
    assert decode_batch(READ_BY_VLLM) == ForeignBatch(12.5, (*events, ForeignCleared()))


@pytest.mark.parametrize(
    ("raw", "event"),
    [
        (
            ["BlockStored", [b"h" * 32], None, [1, 2], 2, 4],
            ForeignStored(block_hashes=[b"h" * 32], token_ids=[1, 2], block_size=2, lora_id=4),
        ),
        (
            ["BlockStored", [1], 9, [1, 2], 2, None, "CPU", "a", [["a"]], 1, "full_attention", None, "LOCAL"],
            ForeignStored(
                block_hashes=[1],
                token_ids=[1, 2],
                block_size=2,
                parent_block_hash=9,
                medium="CPU",
                lora_name="a",
                extra_keys=[["a"]],
                group_idx=1,
                kv_cache_spec_kind="full_attention",
                locality="LOCAL",
            ),
        ),
        (
            ["BlockStored", [-(2**63)], -1, [1, 2], 2, None],
            ForeignStored([-(2**63)], [1, 2], 2, parent_block_hash=-1),
        ),
        (
            {
                "type": "BlockStored",
                "block_hashes": [-1],
                "parent_block_hash": None,
                "token_ids": [1],
                "block_size": 1,
                "lora_id": None,
                "medium": "CPU_PINNED",
                "cache_salt": "tenant",
            },
            ForeignStored([-1], [1], 1, medium="CPU_PINNED", cache_salt="tenant"),
        ),
        (["BlockRemoved", [1, 2]], ForeignRemoved([1, 2])),
        (["AllBlocksCleared"], ForeignCleared()),
        (
            {
                "type": "BlockStored",
                "block_hashes": [1],
                "parent_block_hash": None,
                "token_ids": [1, 2],
                "block_size": 2,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "session_id": "new",
            },
            ForeignStored(block_hashes=[1], token_ids=[1, 2], block_size=2, medium="GPU"),
        ),
        (
            {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "group_idx": 2},
            ForeignRemoved([1], "CPU", 2),
        ),
        ({"type": "AllBlocksCleared"}, ForeignCleared()),
    ],
)
def test_both_encodings_are_read_short_and_long(raw: object, event: object) -> None:
    assert decode_batch(pack(raw)).events == (event,)


def test_a_kind_nobody_knows_is_left_out_and_the_rest_read() -> None:
    payload = pack(["BlockMoved", 1], {"type": "Other"}, ["AllBlocksCleared"])

    assert decode_batch(payload).events == (ForeignCleared(),)


def test_a_batch_without_rank_is_read() -> None:
    payload = msgspec.msgpack.encode([1.0, [["AllBlocksCleared"]]])

    assert decode_batch(payload) == ForeignBatch(1.0, (ForeignCleared(),))


@pytest.mark.parametrize(
    "raw",
    [
        7,
        [],
        ["BlockStored", [1], None, [-1], 1],
        ["BlockStored", [1], None, [2**32], 1],
        ["BlockStored", [1], None, [[1, 2]], 1],
        ["BlockStored", [1], None, [1], -1],
        ["BlockStored", ["x"], None, [1], 1],
        ["BlockRemoved"],
        ["BlockStored", [b"h" * 65], None, [1], 1],
        ["BlockStored", [1], b"h" * 65, [1], 1],
        ["BlockStored", [1], None, [1] * 8193, 8193],
        ["BlockStored", [1], None, [1] * (2**20 + 1), 1],
        ["BlockRemoved", [b"h" * 65]],
        ["BlockRemoved", [1] * (2**17 + 1)],
    ],
    ids=lambda raw: repr(raw)[:60],
)
def test_an_event_that_is_none_is_counted_and_the_rest_read(raw: object) -> None:
    assert decode_batch(pack(raw, ["AllBlocksCleared"])) == ForeignBatch(12.5, (ForeignCleared(),), 1)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", msgspec.msgpack.encode({}), msgspec.msgpack.encode([1.0]), b"\x91" * 100_000],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(ForeignFormatError):
        decode_batch(payload)


def test_a_batch_of_too_many_events_is_refused_unread() -> None:
    cleared = ["AllBlocksCleared"]
    assert len(decode_batch(pack(*[cleared] * 1000)).events) == 1000
    with pytest.raises(ForeignFormatError, match="length <= 131072"):
        decode_batch(pack(*[7] * (2**17 + 1)))


def test_a_digest_of_64_bytes_is_read() -> None:
    digest = b"h" * 64
    assert decode_batch(pack(["BlockRemoved", [digest]])).events == (ForeignRemoved([digest]),)
