"""The engine's own thread: commands come in, step frames go out, and no event loop is waited for."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

import msgspec

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.protocol.frames import FrameError, Heartbeat, StepFrame, encode_frame
from atomesh.protocol.generation import GenerationRequest, TokenDelta, WireError
from atomesh.protocol.worker import LoadReport

if TYPE_CHECKING:
    from atomesh.engine.engine import Engine

_log = logging.getLogger(__name__)

STALL_S = 120.0  # a step that takes longer is a hang, not work


class Outlet(Protocol):
    """Where one gateway's frames go. `send` never blocks, never raises, and may be called from any thread."""

    def send(self, data: bytes) -> None: ...


@dataclass(slots=True)
class _LiveRequest:
    """`engine_id` is unique in the engine, `delta.request_id` on the wire only within its outlet."""

    outlet: Outlet
    request_id: str
    open_choices: int


class EngineLoop:
    """Owns the engine: after `start`, only its thread touches it.

    All public methods may be called from any thread.
    """

    def __init__(self, engine: "Engine", clock: Clock, on_failure: Callable[[Exception], None]) -> None:
        """`on_failure` is called in the engine thread when the engine itself, not a request, has failed."""
        self._engine = engine
        self._clock = clock
        self._on_failure = on_failure
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._live: dict[str, _LiveRequest] = {}
        self._engine_ids: defaultdict[Outlet, dict[str, str]] = defaultdict(dict)
        self._submitted = 0
        self._draining = False
        self._stopping = False
        self._step_began: float | None = None
        self._load = engine.load()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, outlet: Outlet, request: GenerationRequest) -> None:
        self._commands.put(lambda: self._submit(outlet, request))

    def abort(self, outlet: Outlet, request_id: str) -> None:
        self._commands.put(lambda: self._abort(outlet, request_id))

    def drop(self, outlet: Outlet) -> None:
        """The gateway behind `outlet` is gone: abort all its requests."""
        self._commands.put(lambda: self._drop(outlet))

    def reset_prefix_cache(self) -> None:
        self._commands.put(self._engine.reset_prefix_cache)

    def drain(self) -> None:
        """Refuse new requests from now on; those that run go on."""
        self._commands.put(self._drain)

    def stop(self) -> None:
        """End the thread after its present step and wait for it; requests still running are dropped."""
        self._commands.put(self._stop)
        self._thread.join()

    @property
    def load(self) -> LoadReport:
        """The load after the last step."""
        return self._load

    @property
    def is_drained(self) -> bool:
        """Told to drain, and no request is left."""
        return self._draining and not self._live

    @property
    def is_healthy(self) -> bool:
        """The thread lives, and its present step has not taken absurdly long."""
        began = self._step_began
        return self._thread.is_alive() and (began is None or self._clock.now() - began < STALL_S)

    def heartbeat(self) -> bytes:
        return encode_frame(Heartbeat(self._load))

    def _run(self) -> None:
        try:
            while self._obey():
                self._step()
        except Exception as error:  # noqa: BLE001  the thread's root: whoever runs the worker must hear of it
            self._on_failure(error)

    def _obey(self) -> bool:
        """Carry out the waiting commands; with nothing to compute, wait for one. False when told to stop."""
        if not self._engine.has_work():
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()
        self._load = self._engine.load()
        return not self._stopping

    def _step(self) -> None:
        if not self._engine.has_work():
            return
        self._step_began = self._clock.now()
        deltas = self._engine.step()
        self._step_began = None
        self._load = self._engine.load()
        for outlet, own in self._by_outlet(deltas).items():
            self._send(outlet, own)

    def _by_outlet(self, deltas: list[TokenDelta]) -> dict[Outlet, list[TokenDelta]]:
        """The deltas of live requests under their wire ids; forgets the requests that they finish."""
        frames: defaultdict[Outlet, list[TokenDelta]] = defaultdict(list)
        for delta in deltas:
            live = self._live.get(delta.request_id)
            if live is None:
                continue
            frames[live.outlet].append(msgspec.structs.replace(delta, request_id=live.request_id))
            if delta.finish_reason is not None:
                live.open_choices -= 1
            if delta.error is not None or live.open_choices == 0:
                self._forget(delta.request_id)
        return frames

    def _send(self, outlet: Outlet, deltas: list[TokenDelta]) -> None:
        for frame in _step_frames(deltas, self._load):
            outlet.send(frame)

    def _submit(self, outlet: Outlet, request: GenerationRequest) -> None:
        try:
            self._add(outlet, request)
        except AtomeshError as error:
            self._refuse(outlet, request, error)
        except Exception:  # noqa: BLE001  one bad request must not end the others
            _log.exception("a request could not be taken in")
            self._refuse(outlet, request, AtomeshError("the engine could not take the request in"))

    def _add(self, outlet: Outlet, request: GenerationRequest) -> None:
        if self._draining:
            raise ServiceUnavailableError("the worker is shutting down; try again in a moment")
        if request.request_id in self._engine_ids[outlet]:
            raise AtomeshError("the request id is already in use on this connection")
        self._submitted += 1
        engine_id = str(self._submitted)
        self._engine.add(msgspec.structs.replace(request, request_id=engine_id))
        self._live[engine_id] = _LiveRequest(outlet, request.request_id, request.n)
        self._engine_ids[outlet][request.request_id] = engine_id

    def _refuse(self, outlet: Outlet, request: GenerationRequest, error: AtomeshError) -> None:
        wire = WireError(type(error).__name__, error.message, error.param)
        self._send(outlet, [TokenDelta(request_id=request.request_id, finish_reason="error", error=wire)])

    def _abort(self, outlet: Outlet, request_id: str) -> None:
        engine_id = self._engine_ids[outlet].get(request_id)
        if engine_id is not None:
            self._engine.abort(engine_id)
            self._forget(engine_id)

    def _drop(self, outlet: Outlet) -> None:
        for request_id in tuple(self._engine_ids[outlet]):
            self._abort(outlet, request_id)
        del self._engine_ids[outlet]

    def _forget(self, engine_id: str) -> None:
        live = self._live.pop(engine_id)
        del self._engine_ids[live.outlet][live.request_id]

    def _drain(self) -> None:
        self._draining = True

    def _stop(self) -> None:
        self._stopping = True


def _step_frames(deltas: list[TokenDelta], load: LoadReport) -> list[bytes]:
    """One frame, or several when one would be too long; a delta too long by itself becomes an error."""
    try:
        return [encode_frame(StepFrame(deltas, load))]
    except FrameError as error:
        if len(deltas) > 1:
            middle = len(deltas) // 2
            return _step_frames(deltas[:middle], load) + _step_frames(deltas[middle:], load)
        wire = WireError("EngineError", f"the answer does not fit the token plane: {error}")
        lost = TokenDelta(request_id=deltas[0].request_id, finish_reason="error", error=wire)
        return [encode_frame(StepFrame([lost], load))]
