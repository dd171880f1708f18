"""vLLM's KV events, byte for byte."""

import msgspec
import pytest

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


def test_arrays_are_written_in_the_order_that_readers_expect() -> None:
    written = encode_batch(12.5, [STORED, ForeignRemoved([7], "GPU"), ForeignCleared()], rank=3)

    assert msgspec.msgpack.decode(written) == [
        12.5,
        [
            ["BlockStored", [2**64 - 1, 7], 5, [1, 2, 3, 4], 2, None, "GPU", None, [None, None]],
            ["BlockRemoved", [7], "GPU"],
            ["AllBlocksCleared"],
        ],
        3,
    ]
    assert decode_batch(written) == ForeignBatch(12.5, (STORED, ForeignRemoved([7], "GPU"), ForeignCleared()))


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
            ),
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
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode([1.0]),
        pack(7),
        pack([]),
        pack(["BlockStored", [1], None, [-1], 1]),
        pack(["BlockStored", [1], None, [2**32], 1]),
        pack(["BlockStored", [1], None, [1], 0]),
        pack(["BlockStored", ["x"], None, [1], 1]),
        pack(["BlockRemoved"]),
        b"\x91" * 100_000,
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(ForeignFormatError):
        decode_batch(payload)
