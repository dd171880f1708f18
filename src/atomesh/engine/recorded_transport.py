"""A KVTransport as it was, its pushes and arrivals noted while a recording runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atomesh.clock import Clock
from atomesh.engine.step_recorder import StepRecorder, Transfer
from atomesh.kv_transfer.transport import (
    BlockPush,
    KVTransport,
    Pushed,
    PushFailed,
    Received,
    TransportEvent,
)
from atomesh.protocol.kv_handoff import HandoffMessage


@dataclass(frozen=True, slots=True)
class _Push:
    peer: str
    blocks: int
    began_at: float


class RecordedTransport:
    """Implements `kv_transfer.transport.KVTransport`. `block_bytes` is the size of a block."""

    def __init__(self, inner: KVTransport, recorder: StepRecorder, clock: Clock, block_bytes: int) -> None:
        self._inner = inner
        self._recorder = recorder
        self._clock = clock
        self._block_bytes = block_bytes
        self._pushes: dict[int, _Push] = {}

    @property
    def address(self) -> str:
        return self._inner.address

    @property
    def refusals(self) -> Mapping[str, int]:
        return self._inner.refusals

    def send(self, peer: str, message: HandoffMessage) -> None:
        self._inner.send(peer, message)

    def push(
        self, peer: str, grant: bytes, blocks: Sequence[BlockPush], push_id: int, deadline_s: float
    ) -> None:
        if self._recorder.is_on:
            self._pushes[push_id] = _Push(peer, len(blocks), self._clock.now())
        self._inner.push(peer, grant, blocks, push_id, deadline_s)

    def admit(self, peer: str, grant: bytes, targets: Mapping[int, int]) -> None:
        self._inner.admit(peer, grant, targets)

    def cancel(self, grant: bytes) -> None:
        self._inner.cancel(grant)

    def poll(self) -> list[TransportEvent]:
        events = self._inner.poll()
        if self._recorder.is_on:
            for event in events:
                self._note(event)
        elif self._pushes:
            self._pushes.clear()
        return events

    def close(self) -> None:
        self._inner.close()

    def _note(self, event: TransportEvent) -> None:
        match event:
            case Pushed(push_id):
                self._note_push(push_id, "ok")
            case PushFailed(push_id, reason):
                self._note_push(push_id, reason)
            case Received(_, indices, sample) if sample is not None:
                self._recorder.saw_transfer(
                    Transfer(
                        "receive", sample.peer_incarnation, sample.seconds, len(indices), sample.num_bytes
                    )
                )

    def _note_push(self, push_id: int, outcome: str) -> None:
        """One that was under way before the recording began is not known."""
        if (push := self._pushes.pop(push_id, None)) is None:
            return
        seconds, size = self._clock.now() - push.began_at, push.blocks * self._block_bytes
        self._recorder.saw_transfer(Transfer("push", push.peer, seconds, push.blocks, size, outcome))
