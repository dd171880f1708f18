"""Pushes and arrivals are noted while a recording runs; the transport behind it does what it always did."""

from atomesh.engine.recorded_transport import RecordedTransport
from atomesh.engine.step_recorder import StepRecorder
from atomesh.kv_transfer.transport import BlockPush, Pushed, PushFailed, Received
from atomesh.protocol.step_sample import TransferSample
from atomesh.protocol.step_trace import TraceLimits, TransferRecord
from atomesh.testing.manual_clock import ManualClock


class Transport:
    address, refusals = "unix:/here", {"mac": 1}

    def __init__(self) -> None:
        self.pushed: list[int] = []
        self.events: list[object] = []

    def push(self, peer, grant, blocks, push_id, deadline_s) -> None:
        self.pushed.append(push_id)

    def poll(self):
        events, self.events = self.events, []
        return events


def push(transport: RecordedTransport, push_id: int, blocks: int) -> None:
    transport.push("unix:/there", b"g", [BlockPush(i, i) for i in range(blocks)], push_id, 2.0)


def test_each_transfer_is_noted_with_its_size_and_how_it_ended() -> None:
    clock, inner = ManualClock(), Transport()
    recorder = StepRecorder(clock)
    transport = RecordedTransport(inner, recorder, clock, block_bytes=100)
    push(transport, 1, 2)  # before the recording: not known
    recorder.start(TraceLimits())
    push(transport, 2, 2)
    clock.advance(0.5)
    push(transport, 3, 4)
    clock.advance(0.5)
    inner.events = said = [
        Pushed(1),
        Pushed(2),
        PushFailed(3, "the deadline has passed"),
        Received(b"g", (0, 1, 2), TransferSample("incarnation", 300, 0.25)),
        Received(b"g", (3,)),
    ]
    assert transport.poll() is said
    trace = recorder.stop()

    assert inner.pushed == [1, 2, 3]
    assert trace is not None
    assert trace.transfers == [
        TransferRecord("push", "unix:/there", 0.0, 1.0, 2, 200, "ok"),
        TransferRecord("push", "unix:/there", 0.5, 1.0, 4, 400, "the deadline has passed"),
        TransferRecord("receive", "incarnation", 0.75, 1.0, 3, 300, "ok"),
    ]


def test_without_a_recording_nothing_is_kept() -> None:
    clock, inner = ManualClock(), Transport()
    recorder = StepRecorder(clock)
    transport = RecordedTransport(inner, recorder, clock, block_bytes=100)
    recorder.start(TraceLimits())
    push(transport, 1, 1)
    recorder.stop()
    push(transport, 2, 1)
    transport.poll()
    recorder.start(TraceLimits())
    inner.events = [Pushed(1), Pushed(2)]
    transport.poll()
    trace = recorder.stop()
    assert trace is not None
    assert trace.transfers == []
    assert (transport.address, transport.refusals) == (inner.address, inner.refusals)
