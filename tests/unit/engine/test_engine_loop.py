"""The engine's thread: what wakes it, what it says of itself, and when it has nothing left to do."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from atomesh.engine.core.kv_books import KVBooks
from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.engine.doorbell import Doorbell
from atomesh.engine.engine_loop import EngineLoop
from atomesh.protocol.frames import FrameDecoder, Heartbeat, Inspected, StepFrame, WorkerMessage
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.ticket import Ticket
from atomesh.protocol.worker import PRESETS, LoadReport
from atomesh.testing.manual_clock import ManualClock

LIMITS = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=400, max_model_len=64, block_size=16, num_blocks=8
)
PATIENCE_S = 10.0


@dataclass
class Recorder:
    """An engine that notes what it is asked, says `ready` when polled, and has work until it is said."""

    asked: list[str] = field(default_factory=list)
    ready: list[TokenDelta] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    limits: SchedulerConfig = LIMITS
    chunk_budget: int = 0
    steps: int = 0
    polled: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    during_step: threading.Event | None = None

    def add(self, request: GenerationRequest, leg: Leg | None = None) -> None:
        self.asked.append(f"add {request.request_id}")

    def abort(self, request_id: str) -> None:
        self.asked.append(f"abort {request_id}")

    def abort_attempt(self, attempt_id: str) -> None:
        self.asked.append(f"abort attempt {attempt_id}")

    def has_work(self) -> bool:
        return bool(self.ready)

    def poll(self) -> None:
        self.polled.release()

    def step(self) -> list[TokenDelta]:
        if self.during_step is not None:
            self.during_step.wait(PATIENCE_S)
        self.steps += 1
        said, self.ready = self.ready, []
        return said

    def next_deadline(self) -> float | None:
        return self.deadlines.pop() if self.deadlines else None

    def set_chunk_budget(self, max_num_batched_tokens: int) -> None:
        self.chunk_budget = max_num_batched_tokens

    def take_stock(self) -> KVBooks:
        return KVBooks(8, {"free": 6, "held": 2}, {"request 1": 2})

    def load(self) -> LoadReport:
        return LoadReport(steps=self.steps)

    def reset_prefix_cache(self) -> None:
        self.asked.append("reset")


class Inbox:
    def __init__(self) -> None:
        self._decoder = FrameDecoder[WorkerMessage](WorkerMessage)
        self._messages: list[WorkerMessage] = []
        self._news = threading.Semaphore(0)

    def send(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            self._messages.append(message)
            self._news.release()

    def take(self) -> WorkerMessage:
        assert self._news.acquire(timeout=PATIENCE_S)
        return self._messages.pop(0)


@dataclass
class Running:
    engine: Recorder
    loop: EngineLoop
    bell: Doorbell
    clock: ManualClock
    inbox: Inbox

    def settle(self) -> None:
        """All commands so far have been carried out."""
        self.loop.inspect(self.inbox, 0)
        while not isinstance(self.inbox.take(), Inspected):
            pass

    def wait_for_poll(self) -> None:
        assert self.engine.polled.acquire(timeout=PATIENCE_S)


@pytest.fixture
def running() -> Iterator[Running]:
    engine, bell, clock = Recorder(), Doorbell(), ManualClock()
    loop = EngineLoop(engine, clock, pytest.fail, bell)
    loop.start()
    yield Running(engine, loop, bell, clock, Inbox())
    loop.stop()


def request(request_id: str = "r") -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=[1], sampling=SamplingSpec(seed=0, max_tokens=4)
    )


def decode_leg(*, has_ticket: bool) -> DecodeLeg:
    ticket = Ticket(
        ticket_id=b"t" * 16, gateway="g", serial=1, request_id="r", prefill="p", decode="d", ttl_s=30.0
    )
    return DecodeLeg(outputs={0: [5]}, ticket=ticket if has_ticket else None)


def test_news_of_the_kv_plane_wakes_it(running: Running) -> None:
    running.wait_for_poll()  # at the start, for what came before
    running.loop.submit(running.inbox, request())
    running.settle()
    running.engine.ready = [TokenDelta(request_id="1", token_ids=[7])]
    running.bell.ring()
    frame = running.inbox.take()
    assert isinstance(frame, StepFrame)
    assert [(delta.request_id, delta.token_ids) for delta in frame.deltas] == [("r", [7])]
    assert frame.load.steps == 1


def test_a_lease_that_ends_wakes_it(running: Running) -> None:
    running.settle()
    while running.engine.polled.acquire(blocking=False):
        pass
    running.engine.deadlines = [running.clock.now()] * 2  # it asks once to know, once to wait
    running.settle()
    running.wait_for_poll()
    running.wait_for_poll()


def test_a_role_decides_how_long_chunks_are(running: Running) -> None:
    running.loop.set_role(PRESETS["decode"])
    running.settle()
    assert running.engine.chunk_budget == 100
    running.loop.set_role(PRESETS["prefill"])
    running.settle()
    assert running.engine.chunk_budget == 400


def test_whole_prompts_stay_whole_in_every_role(running: Running) -> None:
    running.engine.limits = SchedulerConfig(
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=64,
        block_size=16,
        num_blocks=8,
        enable_chunked_prefill=False,
    )
    running.loop.set_role(PRESETS["decode"])
    running.settle()
    assert running.engine.chunk_budget == 0


def test_the_books_are_sent_to_who_asks(running: Running) -> None:
    running.loop.inspect(running.inbox, 4)
    assert running.inbox.take() == Inspected(4, 8, {"free": 6, "held": 2}, {"request 1": 2})


def test_an_abort_of_what_is_not_known_ends_what_came_for_it(running: Running) -> None:
    running.loop.submit(running.inbox, request())
    running.loop.abort(running.inbox, "r")
    running.loop.abort(running.inbox, "r")
    running.settle()
    assert running.engine.asked == ["add 1", "abort 1", "abort attempt r"]


def test_a_heartbeat_says_how_long_the_present_step_takes(running: Running) -> None:
    release = running.engine.during_step = threading.Event()
    running.loop.submit(running.inbox, request())
    running.settle()
    running.engine.ready = [TokenDelta(request_id="1", token_ids=[7])]
    running.bell.ring()
    while running.loop.load.step_s == 0.0:
        running.clock.advance(0.5)
    [beat] = FrameDecoder[WorkerMessage](WorkerMessage).feed(running.loop.heartbeat())
    assert isinstance(beat, Heartbeat)
    assert beat.load.step_s >= 0.5
    assert running.loop.is_healthy
    running.clock.advance(120.0)
    assert not running.loop.is_healthy
    release.set()
    running.inbox.take()
    assert running.loop.load.step_s == 0.0


def test_draining_it_takes_only_what_has_begun_elsewhere(running: Running) -> None:
    running.loop.drain()
    for number, leg in enumerate((None, decode_leg(has_ticket=False), decode_leg(has_ticket=True))):
        running.loop.submit(running.inbox, request(f"r{number}"), leg)
    for name in ("r0", "r1"):
        frame = running.inbox.take()
        assert isinstance(frame, StepFrame)
        [delta] = frame.deltas
        assert delta.request_id == name
        assert delta.error is not None
        assert delta.error.kind == "ServiceUnavailableError"
    running.settle()
    assert running.engine.asked == ["add 1"]
    assert running.loop.load.draining
    assert not running.loop.is_drained
    running.engine.ready = [TokenDelta(request_id="1", finish_reason="stop")]
    running.bell.ring()
    running.inbox.take()
    assert running.loop.is_drained


def test_a_frame_too_long_is_split_and_a_delta_too_long_is_an_error(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atomesh.protocol.frames.MAX_FRAME_BYTES", 700)
    for name in ("a", "b"):
        running.loop.submit(running.inbox, request(name))
    running.settle()
    running.engine.ready = [
        TokenDelta(request_id="1", token_ids=[70_000] * 50),
        TokenDelta(request_id="2", token_ids=[70_000] * 200),
    ]
    running.bell.ring()
    first, second = running.inbox.take(), running.inbox.take()
    assert isinstance(first, StepFrame)
    assert isinstance(second, StepFrame)
    assert len(first.deltas[0].token_ids) == 50
    [lost] = second.deltas
    assert lost.error is not None
    assert lost.request_id == "b"
    assert msgspec.structs.asdict(lost)["finish_reason"] == "error"
