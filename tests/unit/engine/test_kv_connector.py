"""What the transport brings reaches the decisions, and what they decide reaches the transport."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from atomesh.engine.core.remote_kv.actions import Action, Admit, Cancel, Push, Send
from atomesh.engine.kv_connector import KVConnector
from atomesh.kv_transfer.transport import (
    BlockPush,
    Damaged,
    Fenced,
    Heard,
    PeerLost,
    Pushed,
    PushFailed,
    Received,
    TransportEvent,
)
from atomesh.protocol.fault_points import FaultPoints
from atomesh.protocol.kv_handoff import Commit, HandoffMessage, Refuse, Renew, Reserve
from atomesh.protocol.ticket import Ticket
from atomesh.testing.manual_clock import ManualClock

GRANT = b"g" * 16
TICKET = Ticket(
    ticket_id=b"t" * 16, gateway="g", serial=1, request_id="r", prefill="p", decode="d", ttl_s=30.0
)
RESERVE = Reserve(TICKET, [b"h" * 16], 40)


@dataclass
class Decisions:
    """Notes what it is told; `actions` are what it wants next."""

    told: list[tuple[Any, ...]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def take_actions(self) -> list[Action]:
        actions, self.actions = self.actions, []
        return actions

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.told.append((name, *words))


@dataclass
class Transport:
    """Notes what it is asked; `events` are what has happened."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)
    events: list[TransportEvent] = field(default_factory=list)
    refusals: Mapping[str, int] = field(default_factory=dict)

    address = "nowhere"

    def send(self, peer: str, message: HandoffMessage) -> None:
        self.asked.append(("send", peer, message))

    def push(
        self, peer: str, grant: bytes, blocks: Sequence[BlockPush], push_id: int, deadline_s: float
    ) -> None:
        self.asked.append(("push", peer, grant, list(blocks), push_id, deadline_s))

    def admit(self, peer: str, grant: bytes, targets: Mapping[int, int]) -> None:
        self.asked.append(("admit", peer, grant, targets))

    def cancel(self, grant: bytes) -> None:
        self.asked.append(("cancel", grant))

    def poll(self) -> list[TransportEvent]:
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        self.asked.append(("close",))


@dataclass
class Joined:
    decisions: Decisions
    transport: Transport
    faults: FaultPoints
    connector: KVConnector


@pytest.fixture
def joined() -> Joined:
    decisions, transport, faults = Decisions(), Transport(), FaultPoints()
    clock = ManualClock()
    clock.advance(5.0)
    return Joined(decisions, transport, faults, KVConnector(decisions, transport, clock, faults))


def test_events_are_told_in_their_order(joined: Joined) -> None:
    joined.transport.events = [
        Heard("a", RESERVE, "p"),
        Pushed(1),
        PushFailed(2, "late"),
        Received(GRANT, (0, 2)),
        Damaged(GRANT, "checksum"),
        Fenced(GRANT),
        PeerLost("a", "gone"),
    ]
    joined.connector.poll()
    assert joined.decisions.told == [
        ("heard", "a", RESERVE, 5.0, "p"),
        ("pushed", 1, 5.0),
        ("push_failed", 2, "late", 5.0),
        ("received", GRANT, (0, 2), 5.0),
        ("damaged", GRANT, "checksum", 5.0),
        ("fenced", GRANT, 5.0),
        ("peer_lost", "a", "gone", 5.0),
    ]
    assert joined.transport.asked == []


def test_decisions_are_carried_out_once_and_in_their_order(joined: Joined) -> None:
    renew = Renew(TICKET.ticket_id)
    joined.decisions.actions = [
        Admit("a", GRANT, {1: 7}),
        Send("a", renew),
        Push("b", GRANT, {0: 4, 3: 9}, 6, 2.5),
        Cancel(GRANT),
    ]
    joined.connector.flush()
    joined.connector.flush()
    joined.connector.close()
    assert joined.transport.asked == [
        ("admit", "a", GRANT, {1: 7}),
        ("send", "a", renew),
        ("push", "b", GRANT, [BlockPush(0, 4), BlockPush(3, 9)], 6, 2.5),
        ("cancel", GRANT),
        ("close",),
    ]


def test_a_commit_can_be_dropped_on_purpose_as_often_as_it_is_said(joined: Joined) -> None:
    joined.faults.arm("kv_drop_commit")
    renew, other = Renew(TICKET.ticket_id), Commit(b"o" * 16, GRANT, 40)
    dropped = Commit(TICKET.ticket_id, GRANT, 40)
    joined.decisions.actions = [Send("a", one) for one in (renew, dropped, other, dropped)]
    joined.connector.flush()
    assert joined.transport.asked == [("send", "a", renew), ("send", "a", other)]


def test_a_reservation_can_be_refused_on_purpose(joined: Joined) -> None:
    joined.faults.arm("kv_refuse_reserve")
    joined.transport.events = [Heard("a", RESERVE, "p"), Heard("a", RESERVE, "p")]
    joined.connector.poll()
    assert joined.transport.asked == [("send", "a", Refuse(TICKET.ticket_id, "full"))]
    assert joined.decisions.told == [("heard", "a", RESERVE, 5.0, "p")]


def test_only_what_was_refused_is_told(joined: Joined) -> None:
    joined.transport.refusals = {"mac": 2, "secret": 0}
    assert joined.connector.refusals == {"mac": 2}
