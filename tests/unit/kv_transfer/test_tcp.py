"""A wire step by step, without a thread: what lands, what is diverted, what is found damaged."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from atomesh.kv_transfer import connection, outbox, pace, tcp
from atomesh.kv_transfer.channel import ChannelError
from atomesh.kv_transfer.connection import ConnectionLost, OutgoingPush
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.tcp import TcpConnection
from atomesh.kv_transfer.transport import Arriving, BlockPush, Damaged, Heard, Pushed, PushFailed, Received
from atomesh.kv_transfer.wire import Notice, Payload, PayloadEnd, Said, WireMessage
from atomesh.protocol.kv_handoff import Commit, Renew
from atomesh.testing.connection_pair import ConnectionEnd, ConnectionPair
from atomesh.testing.transport_probe import kv_identity

BLOCK_BYTES = 300_000  # more than a socket holds
GRANT = b"g" * 16
DEADLINE = 5.0


@pytest.fixture
def pair() -> Iterator[ConnectionPair]:
    """The caller is P, its blocks hold 1, 2, 3, 4 all over."""
    pools = PoolMemory(4, BLOCK_BYTES), PoolMemory(4, BLOCK_BYTES)
    for number in range(4):
        pools[0].block(number)[:] = bytes([number + 1]) * BLOCK_BYTES
    pair = ConnectionPair(TcpConnection, pools, kv_identity("w", block_bytes=BLOCK_BYTES))
    yield pair
    pair.close()


def push(end: ConnectionEnd, blocks: dict[int, int], push_id: int = 1, grant: bytes = GRANT) -> None:
    pushes = tuple(BlockPush(index, block) for index, block in blocks.items())
    end.connection.push(OutgoingPush(push_id, grant, pushes), DEADLINE)


def say(end: ConnectionEnd, *messages: WireMessage) -> None:
    for message in messages:
        end.connection._put(end.connection._frame(message))
    end.write()


def values(end: ConnectionEnd) -> list[int | None]:
    blocks = [bytes(end.pool.block(number)) for number in range(4)]
    return [block[0] if block == block[:1] * BLOCK_BYTES else None for block in blocks]


def test_blocks_arrive_piece_by_piece_and_messages_keep_their_place(pair: ConnectionPair) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 3, 1: 0})
    before, after = Renew(b"t" * 16), Commit(b"t" * 16, GRANT, 32)
    pair.caller.connection.send(before)
    push(pair.caller, {0: 1, 1: 2})
    pair.caller.connection.send(after)

    pair.exchange()

    assert values(pair.listener) == [3, 0, 0, 2]
    assert pair.listener.events() == [
        Heard("caller", before),
        Received(GRANT, (0, 1)),
        Heard("caller", after),
    ]
    assert pair.caller.events() == [Pushed(1)]


def test_pieces_and_turns_may_be_small(pair: ConnectionPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "PIECE_BYTES", 7001)
    monkeypatch.setattr(tcp, "ROUND_BYTES", 5003)
    monkeypatch.setattr(connection, "READ_BYTES", 1009)
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0, 1: 1})
    push(pair.caller, {0: 0, 1: 3})
    pair.exchange()
    assert values(pair.listener) == [1, 4, 0, 0]


def test_the_kernel_wakes_the_receiver_for_what_is_left_of_a_payload_however_little(
    pair: ConnectionPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "WAKE_BYTES", 200_000)
    monkeypatch.setattr(tcp, "ROUND_BYTES", 150_000)
    receiver = pair.listener.connection
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0})
    push(pair.caller, {0: 3})

    wakes_at, left = [], [BLOCK_BYTES]
    while left[-1] > 0:
        pair.caller.write()
        with suppress(BlockingIOError):
            receiver.read()
        left.append(receiver._landing.left)
        wakes_at.append(receiver.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))

    assert wakes_at == [max(1, min(200_000, bytes_left)) for bytes_left in left[1:]]
    assert wakes_at[0] == 200_000
    assert values(pair.listener)[0] == 4


def test_a_refused_push_is_drained(pair: ConnectionPair) -> None:
    push(pair.caller, {0: 0, 1: 1})
    pair.caller.connection.send(Renew(b"t" * 16))
    pair.exchange()
    assert values(pair.listener) == [0, 0, 0, 0]
    assert pair.listener.events() == [Heard("caller", Renew(b"t" * 16))]
    assert pair.caller.events() == [PushFailed(1, "the grant is not known, or no longer")]
    assert pair.listener.plane.refusals["grant"] == 1


def test_a_flipped_bit_damages_the_grant(pair: ConnectionPair) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0, 1: 1})
    pair.caller.faults.arm("kv_flip_bit")
    push(pair.caller, {0: 0, 1: 1})
    pair.exchange()
    assert pair.listener.events() == [Damaged(GRANT, "a block's checksum is wrong")]
    assert pair.caller.events() == [PushFailed(1, "a block's checksum is wrong")]
    assert pair.listener.plane.refusals["checksum"] == 1
    assert pair.caller.pool.block(0)[BLOCK_BYTES // 2] == 1

    push(pair.caller, {0: 0}, push_id=2)
    pair.exchange()
    assert pair.listener.events() == []


def partly_arrived(pair: ConnectionPair) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0, 1: 1})
    push(pair.caller, {0: 0, 1: 1})
    pair.caller.write()
    pair.listener.read()
    assert 0 < sum(pair.listener.pool.view) < BLOCK_BYTES


def test_after_a_cancel_within_a_payload_no_byte_lands(pair: ConnectionPair) -> None:
    partly_arrived(pair)
    pair.listener.plane.grants.cancel(GRANT)
    pair.listener.connection.divert(GRANT, "cancelled")
    pair.listener.connection.divert(GRANT, "cancelled")
    pair.listener.pool.view[:] = bytes(len(pair.listener.pool.view))

    pair.exchange()

    assert not any(pair.listener.pool.view)
    assert pair.listener.events() == []
    assert pair.caller.events() == [PushFailed(1, "cancelled")]


def test_after_its_deadline_a_push_reads_the_pool_no_more(pair: ConnectionPair) -> None:
    partly_arrived(pair)
    pair.caller.pass_time(DEADLINE)
    assert pair.caller.events() == [PushFailed(1, "the deadline has passed")]
    pair.caller.pool.view[:] = b"\xff" * len(pair.caller.pool.view)

    pair.exchange()

    assert b"\xff" not in bytes(pair.listener.pool.view)
    assert pair.listener.events() == []
    assert pair.listener.plane.refusals["checksum"] == 0
    push(pair.caller, {0: 0, 1: 1}, push_id=2)
    pair.exchange()
    assert pair.listener.events() == [Received(GRANT, (0, 1))]
    assert values(pair.listener)[:2] == [255, 255]


def test_a_slow_link_is_not_cut_off(pair: ConnectionPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LEAST_BYTES_S", 1000)
    monkeypatch.setattr(pace, "LEAST_BYTES_S", 1000)
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0, 1: 1, 2: 2, 3: 3})
    push(pair.caller, {0: 0, 1: 1, 2: 2, 3: 3})
    seconds, heard = 0.0, []
    while not (told := pair.caller.events()):
        pair.caller.write()
        for end in (pair.caller, pair.listener):
            end.pass_time(DEADLINE / 2)
        seconds += DEADLINE / 2
        pair.listener.read()
        pair.listener.write()
        pair.caller.read()
        heard += pair.listener.events()
    assert told == [Pushed(1)]
    assert seconds > 2 * DEADLINE
    assert heard[0] == Arriving(GRANT)
    assert heard[-1] == Received(GRANT, (0, 1, 2, 3))
    assert set(heard[:-1]) == {Arriving(GRANT)}


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_bytes_that_nobody_wants_are_no_progress(
    pair: ConnectionPair, monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    """Under a grant that nobody gave, or that is over."""
    monkeypatch.setattr(pace, "LEAST_BYTES_S", 1)
    if is_cancelled:
        partly_arrived(pair)
        pair.listener.plane.grants.cancel(GRANT)
        pair.listener.connection.divert(GRANT, "cancelled")
    else:
        push(pair.caller, {0: 0, 1: 1, 2: 2, 3: 3})
    for _ in range(20):
        pair.caller.write()
        pair.listener.pass_time(2 * pace.TELL_S)
        pair.listener.read()
    assert pair.listener.events() == []


def test_a_link_that_has_come_to_a_stand_is_cut_off(
    pair: ConnectionPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LEAST_BYTES_S", 1000)
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0, 1: 1, 2: 2, 3: 3})
    push(pair.caller, {0: 0, 1: 1, 2: 2, 3: 3})
    pair.caller.write()
    pair.listener.read()
    pair.caller.write()
    pair.caller.pass_time(DEADLINE)
    assert pair.caller.events() == []  # something got through meanwhile
    pair.caller.pass_time(DEADLINE)
    assert pair.caller.events() == [PushFailed(1, "the deadline has passed")]


def test_a_push_that_comes_too_late_fails_at_once(pair: ConnectionPair) -> None:
    pair.caller.pass_time(DEADLINE + 1.0)
    push(pair.caller, {0: 0})
    pair.caller.pass_time(0.0)
    assert pair.caller.events() == [PushFailed(1, "the deadline has passed")]


def test_a_push_that_has_not_begun_by_its_deadline_is_never_sent(pair: ConnectionPair) -> None:
    push(pair.caller, {0: 0})
    pair.caller.pass_time(DEADLINE)
    pair.exchange()
    assert pair.caller.events() == [PushFailed(1, "the deadline has passed")]
    assert pair.listener.plane.refusals["grant"] == 0


def test_an_answer_after_the_deadline_changes_nothing(pair: ConnectionPair) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0})
    push(pair.caller, {0: 0})
    while pair.caller.connection.wants_to_write:
        pair.caller.write()
        pair.listener.read()
    pair.caller.pass_time(DEADLINE)
    pair.exchange()
    assert pair.caller.events() == [PushFailed(1, "the deadline has passed")]


def test_what_waits_for_a_peer_is_bounded(pair: ConnectionPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_ITEMS", 10)
    for number in range(10):
        push(pair.caller, {0: 0}, push_id=number)
    with pytest.raises(ConnectionLost, match="does not read"):
        pair.caller.connection.send(Renew(b"t" * 16))


def test_a_peer_that_ends_within_a_block_is_lost(pair: ConnectionPair) -> None:
    partly_arrived(pair)
    pair.caller.connection.close()
    with pytest.raises(ConnectionLost, match="within a block"):
        pair.listener.read()


def test_more_blocks_than_the_pool_has_are_refused_at_once(pair: ConnectionPair) -> None:
    say(pair.caller, Payload(1, GRANT, [0, 1, 2, 3, 4]))
    with pytest.raises(ChannelError, match="5 blocks for a pool of 4"):
        pair.listener.read()


@pytest.mark.parametrize(
    "message",
    [PayloadEnd(1, []), PayloadEnd(1, None), Notice(1, GRANT, [0], [0])],
    ids=lambda m: type(m).__name__,
)
def test_what_comes_out_of_turn_is_refused(pair: ConnectionPair, message: WireMessage) -> None:
    say(pair.caller, message)
    with pytest.raises(ChannelError, match="out of turn"):
        pair.listener.read()


@pytest.mark.parametrize(
    "message",
    [Said(Renew(b"t" * 16)), Payload(2, GRANT, [0]), PayloadEnd(2, [])],
    ids=lambda m: type(m).__name__,
)
def test_after_a_payload_comes_its_end(pair: ConnectionPair, message: WireMessage) -> None:
    say(pair.caller, Payload(1, GRANT, [0]))
    sent = 0
    while sent < BLOCK_BYTES:
        sent += pair.caller.connection.sock.send(bytes(min(50_000, BLOCK_BYTES - sent)))
        pair.listener.read()
    say(pair.caller, message)
    with pytest.raises(ChannelError, match=r"within a payload|out of turn"):
        pair.listener.read()


@pytest.mark.parametrize("digests", [[], [1], [1, 2]])
def test_checksums_must_be_right_and_as_many_as_blocks(pair: ConnectionPair, digests: list[int]) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0})
    say(pair.caller, Payload(1, GRANT, [0]))
    sent = 0
    while sent < BLOCK_BYTES:
        sent += pair.caller.connection.sock.send(bytes(min(50_000, BLOCK_BYTES - sent)))
        pair.listener.read()
    say(pair.caller, PayloadEnd(1, digests))
    pair.listener.read()
    assert pair.listener.events() == [Damaged(GRANT, "a block's checksum is wrong")]
