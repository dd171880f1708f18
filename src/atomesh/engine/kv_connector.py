"""Joins the hand-off's decisions (engine.core.remote_kv) to what moves the bytes (a KVTransport)."""

from collections import deque
from typing import TYPE_CHECKING, Protocol

from atomesh.engine.core.remote_kv.actions import Action, Admit, Cancel, Push, Send
from atomesh.kv_transfer.transport import (
    Arriving,
    BlockPush,
    Damaged,
    Fenced,
    Heard,
    KVTransport,
    PeerLost,
    Pushed,
    PushFailed,
    Received,
    TransportEvent,
)
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.kv_handoff import Commit, HandoffMessage, Refuse, Reserve
from atomesh.protocol.step_sample import TransferSample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atomesh.clock import Clock


MAX_SAMPLES = 256


class RemoteKV(Protocol):
    """The decisions: told what happened, they say what is to be done. `now` in seconds."""

    def heard(self, peer: str, message: HandoffMessage, now: float, incarnation: str) -> None: ...
    def pushed(self, push_id: int, now: float) -> None: ...
    def push_failed(self, push_id: int, reason: str, now: float) -> None: ...
    def received(self, grant: bytes, indices: "Sequence[int]", now: float) -> None: ...
    def arriving(self, grant: bytes, now: float) -> None: ...
    def damaged(self, grant: bytes, reason: str, now: float) -> None: ...
    def fenced(self, grant: bytes, now: float) -> None: ...
    def peer_lost(self, peer: str, reason: str, now: float) -> None: ...
    def take_actions(self) -> "Sequence[Action]": ...


class KVConnector:
    """Implements `engine.connector.Connector`; called by the engine's thread alone."""

    def __init__(
        self,
        remote_kv: RemoteKV,
        transport: KVTransport,
        clock: "Clock",
        faults: FaultPoints | None = None,
    ) -> None:
        self._remote_kv = remote_kv
        self._transport = transport
        self._clock = clock
        self._faults = faults or NoFaults()
        self._dropped: set[bytes] = set()
        self._samples: deque[TransferSample] = deque(maxlen=MAX_SAMPLES)

    def poll(self) -> None:
        """Tell what the transport has brought since the last time."""
        now = self._clock.now()
        for event in self._transport.poll():
            self._tell(event, now)

    def flush(self) -> None:
        """Have done what was decided since the last time."""
        for action in self._remote_kv.take_actions():
            self._carry_out(action)

    @property
    def refusals(self) -> "Mapping[str, int]":
        return {reason: count for reason, count in self._transport.refusals.items() if count}

    def take_samples(self) -> tuple[TransferSample, ...]:
        samples = tuple(self._samples)
        self._samples.clear()
        return samples

    def close(self) -> None:
        self._transport.close()

    def _tell(self, event: TransportEvent, now: float) -> None:
        remote_kv = self._remote_kv
        match event:
            case Heard():
                self._hear(event, now)
            case Pushed(push_id):
                remote_kv.pushed(push_id, now)
            case PushFailed(push_id, reason):
                remote_kv.push_failed(push_id, reason, now)
            case Received(grant, indices, sample):
                if sample is not None:
                    self._samples.append(sample)
                remote_kv.received(grant, indices, now)
            case Arriving(grant):
                remote_kv.arriving(grant, now)
            case Damaged(grant, reason):
                remote_kv.damaged(grant, reason, now)
            case Fenced(grant):
                remote_kv.fenced(grant, now)
            case PeerLost(peer, reason):
                remote_kv.peer_lost(peer, reason, now)

    def _hear(self, heard: Heard, now: float) -> None:
        peer, message = heard.peer, heard.message
        if isinstance(message, Reserve) and self._faults.fires("kv_refuse_reserve"):
            self._transport.send(peer, Refuse(message.ticket.ticket_id, "full"))
        else:
            self._remote_kv.heard(peer, message, now, heard.incarnation)

    def _carry_out(self, action: Action) -> None:
        transport = self._transport
        match action:
            case Send(peer, message):
                if not self._drops(message):
                    transport.send(peer, message)
            case Push(peer, grant, blocks, push_id, deadline_s):
                pushes = [BlockPush(index, block) for index, block in blocks.items()]
                transport.push(peer, grant, pushes, push_id, deadline_s)
            case Admit(peer, grant, targets):
                transport.admit(peer, grant, targets)
            case Cancel(grant):
                transport.cancel(grant)

    def _drops(self, message: HandoffMessage) -> bool:
        """A commit that a test wants dropped is dropped as often as it is said."""
        if not isinstance(message, Commit):
            return False
        if self._faults.fires("kv_drop_commit"):
            self._dropped.add(message.ticket_id)
        return message.ticket_id in self._dropped
