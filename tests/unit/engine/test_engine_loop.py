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
from atomesh.engine.news import EngineNews
from atomesh.engine.structured_output.grammars import Grammars, NoGrammars
from atomesh.protocol.frames import Heartbeat, Inspected, MessageDecoder, StepFrame, WorkerMessage
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, TokenDelta
from atomesh.protocol.kv_events import BlocksStored, CacheCleared, KVEvents, KVSnapshot
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.step_sample import StepSample, TransferSample
from atomesh.protocol.ticket import Ticket
from atomesh.protocol.worker import PRESETS, LoadReport
from atomesh.testing.manual_clock import ManualClock

LIMITS = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=400, max_model_len=64, block_size=16, num_blocks=8
)
PATIENCE_S = 10.0
NOTHING = KVEvents(0, 0)
STORED = KVEvents(1, 11, [BlocksStored(b"", [b"a" * 16])])
CLEARED = KVEvents(2, 0, [CacheCleared()])


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
    news: list[EngineNews] = field(default_factory=list)
    told: KVEvents = NOTHING
    snapshot: list[KVSnapshot] = field(default_factory=list)
    grammars: Grammars = field(default_factory=NoGrammars)

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

    def take_news(self) -> EngineNews:
        news = self.news.pop(0) if self.news else EngineNews(self.told)
        self.told = msgspec.structs.replace(news.kv_events, events=[])
        return news

    def kv_snapshot(self) -> list[KVSnapshot]:
        self.asked.append("snapshot")
        return self.snapshot

    def reset_prefix_cache(self) -> None:
        self.asked.append("reset")
        self.news = [EngineNews(CLEARED)]


class Inbox:
    def __init__(self) -> None:
        self._decoder = MessageDecoder[WorkerMessage](WorkerMessage)
        self._messages: list[WorkerMessage] = []
        self._news = threading.Semaphore(0)

    def send(self, body: bytes, *, is_news: bool = True) -> None:
        self._messages.append(self._decoder.decode(body))
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
    beat = MessageDecoder[WorkerMessage](WorkerMessage).decode(running.loop.heartbeat())
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


def test_who_follows_hears_of_all_steps_in_the_frame_that_brings_his_tokens_or_in_one_of_its_own(
    running: Running,
) -> None:
    other, stranger = Inbox(), Inbox()
    running.loop.follow(running.inbox)
    running.loop.follow(other)
    running.loop.submit(running.inbox, request())
    running.loop.submit(stranger, request())
    running.settle()
    sample, transfer = StepSample(0.5, 3, 9, 0, 0), TransferSample("p", 10, 0.1)
    running.engine.news = [EngineNews(STORED, sample, (transfer,))]
    running.engine.ready = [TokenDelta(request_id=name, token_ids=[7]) for name in "12"]
    running.bell.ring()

    mine, theirs, strangers = running.inbox.take(), other.take(), stranger.take()
    assert isinstance(mine, StepFrame)
    assert [delta.token_ids for delta in mine.deltas] == [[7]]
    assert (mine.kv_events, mine.sample, mine.transfers) == (STORED, sample, [transfer])
    assert theirs == StepFrame([], mine.load, STORED, sample, [transfer])
    assert isinstance(strangers, StepFrame)
    assert (len(strangers.deltas), strangers.kv_events, strangers.sample) == (1, None, None)


def test_what_happens_while_nothing_runs_is_told_at_once(running: Running) -> None:
    running.loop.follow(running.inbox)
    running.settle()
    running.loop.reset_prefix_cache()

    frame = running.inbox.take()
    assert isinstance(frame, StepFrame)
    assert (frame.deltas, frame.kv_events) == ([], CLEARED)


def test_a_snapshot_comes_after_what_it_contains_was_told_and_is_for_the_asker_alone(
    running: Running,
) -> None:
    late = Inbox()
    running.engine.snapshot = [KVSnapshot(1, 11, [b"a" * 16], is_last=True)]
    running.loop.follow(running.inbox)
    assert running.inbox.take() == running.engine.snapshot[0]
    running.settle()
    running.engine.news = [EngineNews(STORED)]
    running.loop.follow(late)

    assert late.take() == running.engine.snapshot[0]
    told = running.inbox.take()
    assert isinstance(told, StepFrame)
    assert told.kv_events == STORED


def test_a_heartbeat_says_how_far_the_events_have_come_but_tells_none(running: Running) -> None:
    running.loop.follow(running.inbox)
    running.settle()
    running.engine.news = [EngineNews(STORED)]
    running.bell.ring()
    running.inbox.take()
    running.settle()
    beat = MessageDecoder[WorkerMessage](WorkerMessage).decode(running.loop.heartbeat())

    assert isinstance(beat, Heartbeat)
    assert beat.kv_events == KVEvents(1, 11)


def test_who_is_gone_follows_no_more(running: Running) -> None:
    gone = Inbox()
    running.loop.follow(gone)
    running.loop.follow(running.inbox)
    running.loop.drop(gone)
    running.settle()
    running.loop.reset_prefix_cache()

    assert isinstance(running.inbox.take(), StepFrame)
    assert gone._messages == []


def test_news_go_ahead_when_they_and_the_tokens_do_not_fit_one_frame(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.loop.follow(running.inbox)
    running.loop.submit(running.inbox, request())
    running.settle()
    monkeypatch.setattr("atomesh.protocol.frames.MAX_FRAME_BYTES", 700)
    running.engine.news = [EngineNews(KVEvents(1, 11, [BlocksStored(b"", [b"a" * 16] * 20)]))]
    running.engine.ready = [TokenDelta(request_id="1", token_ids=[70_000] * 60)]
    running.bell.ring()
    first, second = running.inbox.take(), running.inbox.take()

    assert isinstance(first, StepFrame)
    assert isinstance(second, StepFrame)
    assert first.kv_events is not None
    assert first.deltas == []
    assert len(second.deltas[0].token_ids) == 60
