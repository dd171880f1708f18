"""KV events on the wire, and their digest."""

import hashlib
import random

import msgspec
import pytest

from atomesh.protocol.frames import MessageDecoder, StepFrame, WorkerMessage, encode_message
from atomesh.protocol.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    KVEvents,
    KVSnapshot,
    add_to_digest,
    take_from_digest,
)
from atomesh.protocol.sealed_channel import ChannelError
from atomesh.protocol.step_sample import StepSample, TransferSample
from atomesh.protocol.worker import LoadReport

HASHES = [hashlib.blake2b(bytes([number]), digest_size=16).digest() for number in range(20)]


@pytest.mark.parametrize(
    "message",
    [
        StepFrame(
            [],
            LoadReport(),
            KVEvents(
                2**40,
                2**64 - 1,
                [
                    BlocksStored(b"", HASHES[:2]),
                    BlocksRemoved(HASHES[1:2], tier="host"),
                    CacheCleared(),
                    BlocksStored(HASHES[0], HASHES[1:3], tier="host"),
                ],
            ),
            StepSample(0.25, 32, 1024, 100, 3),
            [TransferSample("ab", 2**33, 0.5)],
        ),
        KVSnapshot(3, 7, HASHES, is_last=True),
    ],
)
def test_what_is_sent_arrives(message: WorkerMessage) -> None:
    assert MessageDecoder[WorkerMessage](WorkerMessage).decode(encode_message(message)) == message


def test_frame_with_nothing_to_say_of_the_cache_is_no_longer_for_it() -> None:
    fields = msgspec.msgpack.decode(encode_message(StepFrame([], LoadReport())))

    assert set(fields) == {"type", "deltas", "load"}


@pytest.mark.parametrize("size", [0, 15, 17])
def test_hash_of_another_size_breaks_the_protocol(size: int) -> None:
    with pytest.raises(ChannelError):
        MessageDecoder[WorkerMessage](WorkerMessage).decode(
            encode_message(KVSnapshot(1, 1, [bytes(size)], is_last=True))
        )


def test_digest_depends_on_what_is_held_not_on_the_way_there() -> None:
    shuffled = random.Random(0).sample(HASHES, len(HASHES))
    digest = add_to_digest(take_from_digest(add_to_digest(0, shuffled), HASHES[:5]), HASHES[:5])

    assert digest == add_to_digest(0, HASHES) != add_to_digest(0, HASHES[1:])
    assert 0 <= digest < 2**64
    assert add_to_digest(0, HASHES, "host") != add_to_digest(0, HASHES)
    assert take_from_digest(digest, shuffled) == 0
