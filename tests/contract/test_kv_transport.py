"""What every KV transport does, whatever way its blocks travel."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atomesh.kv_transfer.factory import make_transport
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.transport import (
    BlockPush,
    Damaged,
    Fenced,
    Heard,
    KVTransport,
    PeerLost,
    Pushed,
    PushFailed,
    Received,
)
from atomesh.protocol.fault_points import FaultPoints
from atomesh.protocol.kv_handoff import Commit, Committed, Grant, Renew, Withdraw
from atomesh.testing.loopback_transport import LoopbackNetwork
from atomesh.testing.transport_probe import TransportProbe, kv_identity

BLOCK_BYTES = 5000  # no multiple of a page
NUM_BLOCKS = 6
TICKET = b"t" * 16
GRANT = b"g" * 16
DEADLINE_S = 20.0
Listen = Callable[[str, PoolMemory, KVIdentity, Callable[[], None], FaultPoints], KVTransport]


@dataclass
class Plane:
    """Transports of one kind that can reach each other."""

    listen: Listen
    nowhere: str
    probes: list[TransportProbe] = field(default_factory=list)

    def probe(
        self, name: str, mark: int = 0, faults: FaultPoints | None = None, **identity
    ) -> TransportProbe:
        def make(pool: PoolMemory, on_event: Callable[[], None]) -> KVTransport:
            who = kv_identity(name, block_bytes=BLOCK_BYTES, **identity)
            return self.listen(name, pool, who, on_event, faults or FaultPoints())

        self.probes.append(TransportProbe(PoolMemory(NUM_BLOCKS, BLOCK_BYTES), make, mark))
        return self.probes[-1]


@pytest.fixture(params=["shm", "tcp", "loopback"])
def plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Plane]:
    network = LoopbackNetwork()
    kinds = {
        "shm": Plane(
            lambda name, *rest: make_transport(f"unix:{tmp_path}/{name}", *rest), f"unix:{tmp_path}/x"
        ),
        "tcp": Plane(lambda _name, *rest: make_transport("127.0.0.1:0", *rest), "127.0.0.1:9"),
        "loopback": Plane(lambda name, *rest: network.transport(f"loopback:{name}", *rest), "loopback:x"),
    }
    plane = kinds[request.param]
    yield plane
    for probe in plane.probes:
        probe.close()


@dataclass
class Pair:
    """P, whose blocks hold 10 … 15, has called D, whose blocks hold 100 … 105; D knows P as `caller`."""

    p: TransportProbe
    d: TransportProbe
    caller: str

    def admit(self, targets: dict[int, int], grant: bytes = GRANT) -> None:
        """Returns when it has taken effect."""
        self.d.transport.admit(self.caller, grant, targets)
        self.d.transport.send(self.caller, Grant(TICKET, grant, sorted(targets)))
        self.p.wait(Heard)

    def push(self, blocks: dict[int, int], push_id: int = 1, grant: bytes = GRANT) -> None:
        """`blocks` are P's by index in the sequence."""
        pushes = [BlockPush(index, block) for index, block in blocks.items()]
        self.p.transport.push(self.d.address, grant, pushes, push_id, DEADLINE_S)


@pytest.fixture
def faults() -> FaultPoints:
    return FaultPoints()


@pytest.fixture
def pair(plane: Plane, faults: FaultPoints) -> Pair:
    p, d = plane.probe("p", mark=10, faults=faults), plane.probe("d", mark=100)
    p.transport.send(d.address, Renew(TICKET))
    return Pair(p, d, d.wait(Heard).peer)


def test_messages_arrive_in_order_both_ways(plane: Plane) -> None:
    p, d = plane.probe("p"), plane.probe("d")
    said = [Renew(bytes([n]) * 16) for n in range(50)]
    for message in said:
        p.transport.send(d.address, message)

    heard = [d.wait(Heard) for _ in said]

    assert [event.message for event in heard] == said
    (caller,) = {event.peer for event in heard}
    d.transport.send(caller, Committed(TICKET))
    d.transport.send(caller, Withdraw(TICKET))
    assert p.wait(Heard) == Heard(d.address, Committed(TICKET))
    assert p.wait(Heard) == Heard(d.address, Withdraw(TICKET))


def test_each_side_hears_who_the_other_has_proved_to_be(pair: Pair) -> None:
    pair.p.transport.send(pair.d.address, Renew(TICKET))
    assert pair.d.wait(Heard).incarnation == "p"
    pair.d.transport.send(pair.caller, Committed(TICKET))
    assert pair.p.wait(Heard).incarnation == "d"


def test_a_caller_is_known_by_no_address(pair: Pair) -> None:
    assert pair.caller not in (pair.p.address, pair.d.address)
    assert "p" in pair.caller


def test_blocks_land_where_they_are_admitted(pair: Pair) -> None:
    pair.admit({0: 4, 1: 0, 7: 2})
    pair.push({7: 1, 0: 5})

    assert pair.p.wait(Pushed) == Pushed(1)
    received = pair.d.wait(Received)
    assert (received.grant, set(received.indices)) == (GRANT, {0, 7})
    assert pair.d.values() == [100, 101, 11, 103, 15, 105]
    assert pair.p.values() == [10, 11, 12, 13, 14, 15]


def test_a_grant_fills_with_several_pushes(pair: Pair) -> None:
    pair.admit({index: index for index in range(6)})
    for index in range(6):
        pair.push({index: 5 - index}, push_id=index)

    assert [pair.p.wait(Pushed).push_id for _ in range(6)] == list(range(6))
    assert [pair.d.wait(Received).indices for _ in range(6)] == [(index,) for index in range(6)]
    assert pair.d.values() == [15, 14, 13, 12, 11, 10]


def test_what_is_said_after_a_push_is_heard_after_its_blocks(pair: Pair) -> None:
    pair.admit({0: 3})
    pair.push({0: 0})
    pair.p.wait(Pushed)
    pair.p.transport.send(pair.d.address, Commit(TICKET, GRANT, 16))

    pair.d.wait(Heard)

    assert pair.d.unread() == [Received(GRANT, (0,))]
    assert pair.d.values()[3] == 10


@pytest.mark.parametrize("plane", ["shm", "tcp"], indirect=True)
def test_what_has_come_says_from_whom_how_much_and_how_long_it_took(pair: Pair) -> None:
    pair.admit({0: 3, 1: 4})
    pair.push({0: 0, 1: 1})
    sample = pair.d.wait(Received).sample

    assert sample is not None
    assert (sample.peer_incarnation, sample.num_bytes) == (
        kv_identity("p", block_bytes=BLOCK_BYTES).incarnation,
        2 * BLOCK_BYTES,
    )
    assert 0 < sample.seconds < DEADLINE_S


def test_who_was_called_can_push_to_the_caller(pair: Pair) -> None:
    pair.p.transport.admit(pair.d.address, GRANT, {2: 2})
    pair.p.transport.send(pair.d.address, Grant(TICKET, GRANT, [2]))
    pair.d.wait(Heard)
    pair.d.transport.push(pair.caller, GRANT, [BlockPush(2, 5)], 8, DEADLINE_S)

    assert pair.d.wait(Pushed) == Pushed(8)
    assert pair.p.wait(Received) == Received(GRANT, (2,))
    assert pair.p.values()[2] == 105


def test_a_grant_may_be_admitted_before_there_is_a_connection(plane: Plane) -> None:
    p, d = plane.probe("p", mark=10), plane.probe("d", mark=100)
    d.transport.admit(p.address, GRANT, {0: 1})
    d.transport.send(p.address, Grant(TICKET, GRANT, [0]))
    caller = p.wait(Heard).peer
    p.transport.push(caller, GRANT, [BlockPush(0, 3)], 1, DEADLINE_S)

    assert p.wait(Pushed) == Pushed(1)
    assert d.values()[1] == 13


def test_an_unknown_grant_is_refused(pair: Pair) -> None:
    pair.push({0: 0})

    assert "grant" in pair.p.wait(PushFailed).reason
    assert pair.d.transport.refusals["grant"] == 1
    assert pair.d.unread() == []
    assert pair.d.values() == [100, 101, 102, 103, 104, 105]
    assert_alive(pair)


def test_a_grant_is_for_one_peer_alone(plane: Plane, pair: Pair) -> None:
    thief = plane.probe("thief", mark=66)
    pair.admit({0: 0})
    thief.transport.push(pair.d.address, GRANT, [BlockPush(0, 0)], 1, DEADLINE_S)

    assert "another peer's" in thief.wait(PushFailed).reason
    assert pair.d.transport.refusals["grant"] == 1
    assert pair.d.values()[0] == 100
    pair.push({0: 1})
    assert pair.p.wait(Pushed) == Pushed(1)
    assert pair.d.values()[0] == 11


def test_a_block_that_was_not_granted_damages_the_grant(pair: Pair) -> None:
    pair.admit({0: 0, 1: 1})
    pair.push({0: 0, 2: 2})

    assert pair.d.wait(Damaged).grant == GRANT
    pair.p.wait(PushFailed)
    pair.push({1: 1}, push_id=2)
    assert pair.p.wait(PushFailed).push_id == 2
    assert pair.d.values() == [100, 101, 102, 103, 104, 105]
    assert_alive(pair)


def test_a_block_comes_once(pair: Pair) -> None:
    pair.admit({0: 0, 1: 1})
    pair.push({0: 0}, push_id=1)
    pair.p.wait(Pushed)
    pair.push({0: 5, 1: 5}, push_id=2)

    assert pair.p.wait(PushFailed) == PushFailed(2, "a block has come already")
    assert pair.d.values()[:2] == [10, 101]
    pair.push({1: 4}, push_id=3)
    assert pair.p.wait(Pushed) == Pushed(3)
    assert pair.d.values()[:2] == [10, 14]


def test_after_a_cancel_nothing_lands(pair: Pair) -> None:
    pair.admit({0: 0, 1: 1})
    pair.push({0: 0})
    pair.p.wait(Pushed)
    pair.d.transport.cancel(GRANT)
    assert pair.d.wait(Fenced) == Fenced(GRANT)
    pair.d.fill(0, 77)

    pair.push({1: 1}, push_id=2)

    assert pair.p.wait(PushFailed).push_id == 2
    assert pair.d.values()[:2] == [77, 101]
    assert_alive(pair)


def test_an_unknown_grant_is_fenced_too(pair: Pair) -> None:
    pair.d.transport.cancel(b"?" * 16)
    assert pair.d.wait(Fenced) == Fenced(b"?" * 16)


def test_a_grant_can_be_given_again_after_its_cancel(pair: Pair) -> None:
    pair.admit({0: 0})
    pair.d.transport.cancel(GRANT)
    pair.d.wait(Fenced)
    pair.admit({0: 5})
    pair.push({0: 3})
    assert pair.p.wait(Pushed) == Pushed(1)
    assert pair.d.values() == [100, 101, 102, 103, 104, 13]


def test_another_layout_is_refused_with_the_field_named(plane: Plane) -> None:
    p, d = plane.probe("p"), plane.probe("d", dtype="bfloat16")
    p.transport.send(d.address, Renew(TICKET))

    lost = p.wait(PeerLost)

    assert lost.peer == d.address
    assert "dtype is 'float32' here and 'bfloat16' there" in lost.reason
    assert d.unread() == []


def test_another_secret_is_refused(plane: Plane) -> None:
    p, d = plane.probe("p"), plane.probe("d", secret=b"another")
    p.transport.push(d.address, GRANT, [BlockPush(0, 0)], 1, DEADLINE_S)

    assert "does not know the cluster secret" in p.wait(PeerLost).reason
    assert d.unread() == []
    assert d.values() == [0, 1, 2, 3, 4, 5]


def test_nobody_is_there(plane: Plane) -> None:
    p = plane.probe("p")
    p.transport.send(plane.nowhere, Renew(TICKET))
    assert p.wait(PeerLost).peer == plane.nowhere
    p.transport.send(plane.nowhere, Renew(TICKET))
    assert p.wait(PeerLost).peer == plane.nowhere


def test_a_peer_that_closes_is_lost_once(pair: Pair) -> None:
    pair.p.close()

    assert pair.d.wait(PeerLost).peer == pair.caller
    pair.d.transport.send(pair.caller, Committed(TICKET))
    pair.d.transport.push(pair.caller, GRANT, [BlockPush(0, 0)], 3, DEADLINE_S)
    assert pair.d.wait(PushFailed).push_id == 3
    assert pair.d.unread() == []


def test_a_lost_peers_grants_are_void(plane: Plane, pair: Pair) -> None:
    pair.admit({0: 0})
    pair.p.close()
    pair.d.wait(PeerLost)
    other = plane.probe("p2")
    other.transport.push(pair.d.address, GRANT, [BlockPush(0, 0)], 1, DEADLINE_S)
    other.wait(PushFailed)
    assert pair.d.values()[0] == 100


def test_a_peer_that_has_gone_can_come_back_at_its_address(plane: Plane) -> None:
    p, d = plane.probe("p"), plane.probe("d")
    p.transport.send(d.address, Renew(TICKET))
    d.wait(Heard)
    d.close()
    plane.probes.remove(d)
    assert p.wait(PeerLost).peer == d.address

    again = plane.probe("d") if "127.0.0.1" not in d.address else reopened(plane, d.address)
    p.transport.send(again.address, Renew(TICKET))

    assert again.address == d.address
    assert again.wait(Heard).message == Renew(TICKET)


def test_nothing_happens_after_close(pair: Pair) -> None:
    pair.admit({0: 0})
    pair.d.close()
    pair.push({0: 0})
    pair.p.wait(PeerLost)
    pair.d.transport.send(pair.caller, Committed(TICKET))
    pair.d.transport.cancel(GRANT)
    assert pair.d.values() == [100, 101, 102, 103, 104, 105]


def test_a_dropped_push_ends_at_its_deadline(pair: Pair, faults: FaultPoints) -> None:
    pair.admit({0: 0})
    faults.arm("kv_drop_push")
    pair.p.transport.push(pair.d.address, GRANT, [BlockPush(0, 0)], 1, 0.02)

    assert pair.p.wait(PushFailed).push_id == 1
    assert pair.d.values()[0] == 100
    pair.push({0: 0}, push_id=2)
    assert pair.p.wait(Pushed) == Pushed(2)


def test_a_partial_push_looks_whole_to_its_sender(pair: Pair, faults: FaultPoints) -> None:
    pair.admit({0: 0, 1: 1, 2: 2})
    faults.arm("kv_partial_push")
    pair.push({0: 0, 1: 1, 2: 2})

    assert pair.p.wait(Pushed) == Pushed(1)
    assert pair.d.wait(Received) == Received(GRANT, (0,))
    assert pair.d.values()[:3] == [10, 101, 102]


def test_half_of_one_block_is_none(pair: Pair, faults: FaultPoints) -> None:
    pair.admit({0: 0})
    faults.arm("kv_partial_push")
    pair.push({0: 0})
    assert pair.p.wait(Pushed) == Pushed(1)
    assert pair.d.values()[0] == 100
    assert pair.d.unread() == []


def assert_alive(pair: Pair) -> None:
    fresh = b"f" * 16
    pair.admit({0: 5}, grant=fresh)
    pair.push({0: 2}, push_id=99, grant=fresh)
    assert pair.p.wait(Pushed) == Pushed(99)
    assert pair.d.values()[5] == 12


def reopened(plane: Plane, address: str) -> TransportProbe:
    return Plane(lambda _name, *rest: make_transport(address, *rest), "", plane.probes).probe("d")
