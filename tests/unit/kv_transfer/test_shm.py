"""Shared memory step by step, without a thread: what is copied when, and when it is believed."""

from collections.abc import Iterator

import pytest

from atomesh.kv_transfer import shm
from atomesh.kv_transfer.channel import ChannelError
from atomesh.kv_transfer.connection import ConnectionLost, OutgoingPush
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.shm import ShmConnection
from atomesh.kv_transfer.transport import BlockPush, Damaged, Heard, Pushed, PushFailed, Received
from atomesh.kv_transfer.wire import Notice, Payload
from atomesh.protocol.kv_handoff import Renew
from atomesh.testing.connection_pair import ConnectionEnd, ConnectionPair
from atomesh.testing.transport_probe import kv_identity

BLOCK_BYTES = 3000
GRANT = b"g" * 16
DEADLINE = 5.0


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectionPair]:
    """The caller is P, its blocks hold 1, 2, 3, 4; a turn of work copies 1,000 bytes."""
    monkeypatch.setattr(shm, "SLICE_BYTES", 1000)
    monkeypatch.setattr(shm, "ROUND_BYTES", 1000)
    pools = PoolMemory(4, BLOCK_BYTES), PoolMemory(4, BLOCK_BYTES)
    for number in range(4):
        pools[0].block(number)[:] = bytes([number + 1]) * BLOCK_BYTES
    pair = ConnectionPair(ShmConnection, pools, kv_identity("w", block_bytes=BLOCK_BYTES))
    yield pair
    pair.close()


def push(end: ConnectionEnd, blocks: dict[int, int], push_id: int = 1, grant: bytes = GRANT) -> None:
    pushes = tuple(BlockPush(index, block) for index, block in blocks.items())
    end.connection.push(OutgoingPush(push_id, grant, pushes), DEADLINE)


def works(end: ConnectionEnd) -> int:
    """Turns until there is nothing left to do."""
    turns = 0
    while end.connection.has_work:
        end.connection.work()
        turns += 1
    return turns


def values(end: ConnectionEnd) -> list[int]:
    return [end.pool.block(number)[-1] for number in range(4)]


def test_a_push_is_copied_slice_by_slice(pair: ConnectionPair) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 3, 1: 0})
    push(pair.caller, {0: 1, 1: 2})
    pair.caller.write()
    pair.listener.read()

    assert works(pair.listener) == 7  # 2 blocks of 3 slices, and the end
    assert values(pair.listener) == [3, 0, 0, 2]
    assert pair.listener.events() == [Received(GRANT, (0, 1))]
    pair.exchange()
    assert pair.caller.events() == [Pushed(1)]


def test_the_pool_is_passed_and_mapped_both_ways(pair: ConnectionPair) -> None:
    pair.caller.plane.grants.admit("listener", GRANT, {0: 0})
    pair.listener.pool.block(2)[:] = b"\x09" * BLOCK_BYTES
    push(pair.listener, {0: 2})
    pair.exchange()
    assert values(pair.caller) == [9, 2, 3, 4]


def test_a_copy_that_was_taken_back_meanwhile_is_not_believed(pair: ConnectionPair) -> None:
    """The receiver is frozen between slices; the sender gives up, and its block changes."""
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0})
    push(pair.caller, {0: 0})
    pair.caller.write()
    pair.listener.read()
    pair.listener.connection.work()
    pair.caller.pass_time(DEADLINE)
    pair.caller.write()
    assert pair.caller.events() == [PushFailed(1, "the deadline has passed")]
    pair.caller.pool.block(0)[:] = b"\xff" * BLOCK_BYTES

    works(pair.listener)

    assert pair.listener.events() == []
    push(pair.caller, {0: 1}, push_id=2)
    pair.exchange()
    assert pair.listener.events() == [Received(GRANT, (0,))]
    assert values(pair.listener)[0] == 2
    assert pair.caller.events() == [Pushed(2)]


def test_a_copy_whose_sender_went_away_meanwhile_is_not_believed(pair: ConnectionPair) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0})
    push(pair.caller, {0: 0})
    pair.caller.write()
    pair.listener.read()
    pair.caller.connection.close()

    with pytest.raises((ConnectionLost, ConnectionError)):
        works(pair.listener)

    assert pair.listener.events() == []


def test_a_push_fails_only_when_its_stop_has_reached_the_kernel(pair: ConnectionPair) -> None:
    push(pair.caller, {0: 0})
    pair.caller.write()
    pair.caller.pass_time(DEADLINE)
    assert pair.caller.events() == []
    pair.caller.write()
    assert pair.caller.events() == [PushFailed(1, "the deadline has passed")]
    pair.caller.pass_time(shm.STOP_GRACE_S)


def test_a_peer_that_takes_no_stop_is_cut_off(pair: ConnectionPair) -> None:
    push(pair.caller, {0: 0})
    pair.caller.write()
    pair.caller.pass_time(DEADLINE)
    with pytest.raises(ConnectionLost, match="does not read"):
        pair.caller.pass_time(shm.STOP_GRACE_S)


def test_a_push_that_never_went_out_needs_no_stop(pair: ConnectionPair) -> None:
    push(pair.caller, {0: 0})
    pair.caller.pass_time(DEADLINE)
    assert pair.caller.events() == [PushFailed(1, "the deadline has passed")]
    pair.exchange()
    assert pair.listener.events() == []
    assert pair.listener.plane.refusals["grant"] == 0


def test_a_cancel_between_slices_stops_the_copy(pair: ConnectionPair) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0, 1: 1})
    push(pair.caller, {0: 0, 1: 1})
    pair.caller.write()
    pair.listener.read()
    pair.listener.connection.work()
    pair.listener.plane.grants.cancel(GRANT)
    pair.listener.connection.divert(GRANT, "cancelled")
    pair.listener.pool.view[:] = bytes(len(pair.listener.pool.view))

    pair.exchange()

    assert not any(pair.listener.pool.view)
    assert pair.listener.events() == []
    assert pair.caller.events() == [PushFailed(1, "cancelled")]


def test_pushes_under_other_grants_go_on_after_a_cancel(pair: ConnectionPair) -> None:
    other = b"h" * 16
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0})
    pair.listener.plane.grants.admit("caller", other, {0: 1})
    push(pair.caller, {0: 0}, push_id=1)
    push(pair.caller, {0: 1}, push_id=2, grant=other)
    pair.caller.write()
    pair.listener.read()
    pair.listener.connection.divert(GRANT, "cancelled")
    pair.exchange()
    assert pair.caller.events() == [PushFailed(1, "cancelled"), Pushed(2)]
    assert values(pair.listener) == [0, 2, 0, 0]


def test_a_message_behind_a_notice_does_not_wait_for_the_copy(pair: ConnectionPair) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0})
    push(pair.caller, {0: 0})
    pair.caller.connection.send(Renew(b"t" * 16))
    pair.caller.write()
    pair.listener.read()
    assert pair.listener.events() == [Heard("caller", Renew(b"t" * 16))]


@pytest.mark.parametrize("blocks", [[4], [2**31 - 1], [0, 1], []])
def test_blocks_outside_the_senders_pool_damage_the_grant(pair: ConnectionPair, blocks: list[int]) -> None:
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0, 1: 1})
    rogue = pair.caller.connection
    rogue._put(rogue._frame(Notice(9, GRANT, [1], blocks)))
    pair.caller.write()
    if not blocks:
        with pytest.raises(ChannelError):
            pair.listener.read()
        return
    pair.listener.read()

    (damaged,) = pair.listener.events()
    assert isinstance(damaged, Damaged)
    assert damaged.grant == GRANT
    assert pair.listener.plane.refusals["block"] == 1
    assert not pair.listener.connection.has_work


def test_a_payload_has_no_place_here(pair: ConnectionPair) -> None:
    rogue = pair.caller.connection
    rogue._put(rogue._frame(Payload(1, GRANT, [0])))
    pair.caller.write()
    with pytest.raises(ChannelError, match="a Payload over shared memory"):
        pair.listener.read()


def test_copies_that_wait_are_bounded(pair: ConnectionPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "MAX_COPIES", 2)
    pair.listener.plane.grants.admit("caller", GRANT, {0: 0, 1: 1, 2: 2})
    for index in range(3):
        push(pair.caller, {index: index}, push_id=index)
    pair.caller.write()
    with pytest.raises(ConnectionLost, match="more pushes at once"):
        pair.listener.read()
