"""The engine's own thread: commands come in, step frames go out, and no event loop is waited for."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from atomesh.clock import Clock
from atomesh.engine.doorbell import Doorbell
from atomesh.engine.live_requests import LiveRequests, Outlet
from atomesh.engine.news import EngineNews
from atomesh.engine.roles import chunk_budget
from atomesh.engine.structured_output.waiting_room import Prepared, WaitingRoom
from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.frames import Heartbeat, Inspected, Profile, StepFrame, encode_message
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, TokenDelta, WireError
from atomesh.protocol.kv_events import KVEvents
from atomesh.protocol.sealed_channel import ChannelError
from atomesh.protocol.step_trace import TraceLimits
from atomesh.protocol.wire_errors import to_wire
from atomesh.protocol.worker import LoadReport, RoleWeights

if TYPE_CHECKING:
    from atomesh.engine.engine import Engine

_log = logging.getLogger(__name__)

STALL_S = 120.0  # a step that takes longer is a hang, not work
SHORTEST_WAIT_S = 0.001


class EngineLoop:
    """Owns the engine: after `start`, only its thread touches it.

    All public methods may be called from any thread.
    """

    def __init__(
        self,
        engine: "Engine",
        clock: Clock,
        on_failure: Callable[[Exception], None],
        doorbell: Doorbell | None = None,
        faults: FaultPoints | None = None,
    ) -> None:
        """`on_failure` is called in the engine thread when the engine itself, not a request, has failed.

        `doorbell` rings when the engine has news of its own, from its KV plane.
        """
        self._engine = engine
        self._clock = clock
        self._on_failure = on_failure
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._live = LiveRequests()
        self._grammars = WaitingRoom(engine.grammars, self._commands.put)
        self._is_told_to_drain = False
        self._is_draining = False
        self._is_stopping = False
        self._is_rung = False
        self._step_began: float | None = None
        self._load = engine.load()
        self._followers: set[Outlet] = set()
        self._told = KVEvents(0, 0)
        self._has_handoffs = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._doorbell = doorbell or Doorbell()
        self._faults = faults or NoFaults()

    def start(self) -> None:
        self._doorbell.on_ring(self._wake)
        self._wake()  # it may have rung before anybody listened
        self._thread.start()

    def submit(self, outlet: Outlet, request: GenerationRequest, leg: Leg | None = None) -> None:
        self._commands.put(lambda: self._submit(outlet, request, leg))

    def abort(self, outlet: Outlet, request_id: str) -> None:
        """End a request, and what is left of the hand-off of one whose leg is over."""
        self._commands.put(lambda: self._abort(outlet, request_id))

    def drop(self, outlet: Outlet) -> None:
        """The gateway behind `outlet` is gone: abort all its requests."""
        self._commands.put(lambda: self._drop(outlet))

    def set_role(self, weights: RoleWeights) -> None:
        """From the next step on, chunks are as long as the role has them."""
        self._commands.put(lambda: self._set_role(weights))

    def inspect(self, outlet: Outlet, query_id: int) -> None:
        """Send who owns every KV block."""
        self._commands.put(lambda: self._inspect(outlet, query_id))

    def start_trace(self, limits: TraceLimits) -> None:
        """Note what the steps do, from the next one on."""
        self._commands.put(lambda: self._engine.recorder.start(limits))

    def stop_trace(self, outlet: Outlet, query_id: int) -> None:
        """Send what has been noted."""
        self._commands.put(lambda: self._stop_trace(outlet, query_id))

    def follow(self, outlet: Outlet) -> None:
        """Send what the prefix cache holds, and from then on all news, whoever's requests they are of."""
        self._commands.put(lambda: self._follow(outlet))

    def reset_prefix_cache(self) -> None:
        self._commands.put(self._engine.reset_prefix_cache)

    def drain(self) -> None:
        """Refuse new requests from now on; those that run go on, and so do hand-offs that have begun."""
        self._is_told_to_drain = True
        self._commands.put(self._drain)

    def stop(self) -> None:
        """End the thread after its present step and wait for it; requests still running are dropped."""
        self._commands.put(self._stop)
        self._thread.join()

    @property
    def load(self) -> LoadReport:
        """The load after the last step, how long the present one has taken, and whether this is the end."""
        began = self._step_began
        step_s = 0.0 if began is None else self._clock.now() - began
        return msgspec.structs.replace(self._load, step_s=step_s, draining=self._is_told_to_drain)

    @property
    def is_drained(self) -> bool:
        """Told to drain, no request is left, and nobody waits for KV any more."""
        return self._is_draining and not self._live and not self._grammars and not self._has_handoffs

    @property
    def is_healthy(self) -> bool:
        """The thread lives, and its present step has not taken absurdly long."""
        return self._thread.is_alive() and self.load.step_s < STALL_S

    def heartbeat(self) -> bytes:
        return encode_message(Heartbeat(self.load, self._told))

    def _run(self) -> None:
        try:
            while self._obey():
                self._step()
        except Exception as error:  # noqa: BLE001  the thread's root: whoever runs the worker must hear of it
            self._on_failure(error)

    def _obey(self) -> bool:
        """Carry out the waiting commands; with nothing to compute, wait for one. False when told to stop."""
        if not self._engine.has_work():
            self._wait()
        while not self._commands.empty():
            self._commands.get()()
        return not self._is_stopping

    def _wait(self) -> None:
        """For a command, news of the KV plane, or the moment when a lease ends."""
        deadline = self._engine.next_deadline()
        patience_s = None if deadline is None else max(deadline - self._clock.now(), SHORTEST_WAIT_S)
        with suppress(Empty):
            self._commands.get(timeout=patience_s)()

    def _step(self) -> None:
        self._is_rung = False
        self._engine.poll()
        if not self._engine.has_work():
            self._look()
            self._tell([])
            return
        self._step_began = self._clock.now()
        deltas = self._engine.step()
        self._step_began = None
        self._look()
        self._tell(deltas)

    def _tell(self, deltas: list[TokenDelta]) -> None:
        """Send everyone's deltas, and the news to those who follow them."""
        news = self._engine.take_news()
        told = msgspec.structs.replace(news.kv_events, events=[])
        if news.kv_events.events and self._faults.fires("kv_drop_events"):
            news = EngineNews(self._told, news.sample, news.transfers)
        frames = self._by_outlet(deltas)
        for outlet, own in frames.items():
            self._send(outlet, own, news if outlet in self._followers else None)
        if news.is_worth_telling:
            data = encode_message(_frame([], self._load, news))
            for outlet in self._followers.difference(frames):
                outlet.send(data)
        self._told = told

    def _look(self) -> None:
        self._load = msgspec.structs.replace(self._engine.load(), draining=self._is_draining)
        self._has_handoffs = self._engine.next_deadline() is not None

    def _wake(self) -> None:
        """Called in the transport's thread; one ring is enough until the engine has listened."""
        if not self._is_rung:
            self._is_rung = True
            self._commands.put(_listen)

    def _by_outlet(self, deltas: list[TokenDelta]) -> dict[Outlet, list[TokenDelta]]:
        frames: defaultdict[Outlet, list[TokenDelta]] = defaultdict(list)
        for delta in deltas:
            addressed = self._live.address(delta)
            if addressed is not None:
                frames[addressed[0]].append(addressed[1])
        return frames

    def _send(self, outlet: Outlet, deltas: list[TokenDelta], news: EngineNews | None = None) -> None:
        for frame in _step_frames(deltas, self._load, news):
            outlet.send(frame)

    def _submit(self, outlet: Outlet, request: GenerationRequest, leg: Leg | None) -> None:
        try:
            if self._is_draining and not _continues_here(leg):
                raise ServiceUnavailableError("the worker is shutting down; try again in a moment")
            self._take_in(outlet, request, leg)
        except Exception as error:  # noqa: BLE001  one bad request must not end the others
            self._turn_away(outlet, request, error)

    def _turn_away(self, outlet: Outlet, request: GenerationRequest, error: Exception) -> None:
        if not isinstance(error, AtomeshError):
            _log.error("a request could not be taken in", exc_info=error)
            error = AtomeshError("the engine could not take the request in")
        self._refuse(outlet, request, error)

    def _take_in(self, outlet: Outlet, request: GenerationRequest, leg: Leg | None) -> None:
        """At once, or when its grammar is compiled."""
        if self._engine.grammars.is_ready(request):
            self._add(outlet, request, leg)
            return

        def go_on(prepared: Prepared) -> None:
            try:
                if isinstance(prepared, Exception):
                    raise prepared
                self._add(outlet, prepared, leg)
            except Exception as error:  # noqa: BLE001  as in _submit
                self._turn_away(outlet, request, error)

        self._grammars.enter(outlet, request, go_on)

    def _add(self, outlet: Outlet, request: GenerationRequest, leg: Leg | None) -> None:
        engine_id = self._live.next_engine_id(outlet, request.request_id)
        self._engine.add(msgspec.structs.replace(request, request_id=engine_id), leg)
        self._live.admit(engine_id, outlet, request, leg)

    def _refuse(self, outlet: Outlet, request: GenerationRequest, error: AtomeshError) -> None:
        refused = TokenDelta(request_id=request.request_id, finish_reason="error", error=to_wire(error))
        self._send(outlet, [refused])

    def _abort(self, outlet: Outlet, request_id: str) -> None:
        self._grammars.leave(outlet, request_id)
        engine_id = self._live.abort(outlet, request_id)
        if engine_id is not None:
            self._engine.abort(engine_id)
        else:  # a decode leg may never have come, but its KV
            self._engine.abort_attempt(request_id)

    def _follow(self, outlet: Outlet) -> None:
        self._tell([])  # so that the snapshot is of the state after what everyone has heard
        for part in self._engine.kv_snapshot():
            outlet.send(encode_message(part), is_news=False)
        self._followers.add(outlet)

    def _drop(self, outlet: Outlet) -> None:
        self._followers.discard(outlet)
        self._grammars.empty(outlet)
        for engine_id in self._live.drop(outlet):
            self._engine.abort(engine_id)

    def _set_role(self, weights: RoleWeights) -> None:
        limits = self._engine.limits
        if limits.enable_chunked_prefill:
            self._engine.set_chunk_budget(chunk_budget(weights, limits))

    def _inspect(self, outlet: Outlet, query_id: int) -> None:
        books = self._engine.take_stock()
        stock = Inspected(query_id, books.total, books.states, books.owners)
        outlet.send(encode_message(stock), is_news=False)

    def _stop_trace(self, outlet: Outlet, query_id: int) -> None:
        outlet.send(encode_message(Profile(query_id, self._engine.recorder.stop())), is_news=False)

    def _drain(self) -> None:
        self._is_draining = True

    def _stop(self) -> None:
        self._is_stopping = True
        self._grammars.close()


def _listen() -> None:
    """What the engine does after every command anyway."""


def _continues_here(leg: Leg | None) -> bool:
    """Its KV is here or on its way, so that no other worker can take it over without computing it again."""
    return isinstance(leg, DecodeLeg) and leg.ticket is not None


def _frame(deltas: list[TokenDelta], load: LoadReport, news: EngineNews | None) -> StepFrame:
    if news is None:
        return StepFrame(deltas, load)
    return StepFrame(deltas, load, news.kv_events, news.sample, list(news.transfers))


def _step_frames(deltas: list[TokenDelta], load: LoadReport, news: EngineNews | None = None) -> list[bytes]:
    """One frame, or several when one would be too long; a delta too long by itself becomes an error."""
    try:
        return [encode_message(_frame(deltas, load, news))]
    except ChannelError as error:
        if news is not None:
            return _step_frames([], load, news) + _step_frames(deltas, load)
        if len(deltas) > 1:
            middle = len(deltas) // 2
            return _step_frames(deltas[:middle], load) + _step_frames(deltas[middle:], load)
        wire = WireError("EngineError", f"the answer does not fit the token plane: {error}")
        lost = TokenDelta(request_id=deltas[0].request_id, finish_reason="error", error=wire)
        return [encode_message(StepFrame([lost], load))]
