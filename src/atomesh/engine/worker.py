"""A worker: one engine in its own thread, served to gateways over the token plane."""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atomesh.clock import Clock
from atomesh.engine.doorbell import Doorbell
from atomesh.engine.engine_loop import EngineLoop
from atomesh.engine.token_plane import Identity, TokenPlaneServer
from atomesh.listening import bound_address, forget, listen
from atomesh.protocol.address import Address
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.worker import PRESETS

if TYPE_CHECKING:
    from atomesh.engine.engine import Engine

_log = logging.getLogger(__name__)

DRAIN_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """`drain_s` is how long running requests may go on after the worker was told to stop."""

    identity: Identity
    address: Address
    drain_s: float
    faults: FaultPoints = field(default_factory=NoFaults)


class Worker:
    """Serves until `stop`, or until the engine fails.

    `run` binds the address, calls `on_ready` with it as bound (port 0 becomes a real one), and returns after
    a clean stop. Raises ConfigurationError when the address cannot be bound, and the engine's own exception
    when the engine has failed: then the process should end, and a new one start.
    """

    def __init__(
        self, engine: "Engine", options: WorkerOptions, clock: Clock, doorbell: Doorbell | None = None
    ) -> None:
        """`doorbell` is the one that the engine's KV plane rings."""
        self._options = options
        self._doorbell = doorbell
        self._engine = engine
        self._clock = clock
        self._stopping = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._failure: Exception | None = None

    def stop(self) -> None:
        """Finish what runs, within `drain_s`; a second call ends at once. To be called in the event loop."""
        if self._stopping.is_set():
            self._abandoned.set()
        self._stopping.set()

    async def run(self, on_ready: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()

        def on_failure(error: Exception) -> None:
            loop.call_soon_threadsafe(self._fail, error)

        options = self._options
        engine_loop = EngineLoop(self._engine, self._clock, on_failure, self._doorbell, options.faults)
        engine_loop.set_role(PRESETS[options.identity.worker.role])
        self.token_plane = TokenPlaneServer(options.identity, engine_loop, self._clock, options.faults)
        with listen(options.address, "choose another with --listen") as listener:
            engine_loop.start()
            try:
                await self._serve(listener, engine_loop, on_ready)
            finally:
                await asyncio.to_thread(engine_loop.stop)
                forget(options.address)
        if self._failure is not None:
            raise self._failure

    async def _serve(
        self, listener: socket.socket, engine_loop: EngineLoop, on_ready: Callable[[str], None]
    ) -> None:
        tasks = (
            asyncio.create_task(self.token_plane.serve(listener)),
            asyncio.create_task(self.token_plane.beat()),
            asyncio.create_task(self._until_stopped(engine_loop)),
        )
        on_ready(str(bound_address(listener, self._options.address)))
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in done:
            task.result()

    async def _until_stopped(self, engine_loop: EngineLoop) -> None:
        await self._stopping.wait()
        engine_loop.drain()
        deadline = self._clock.now() + self._options.drain_s
        while not self._is_over(engine_loop, deadline):  # noqa: ASYNC110  what it waits for is in another thread
            await asyncio.sleep(DRAIN_POLL_S)
        if self._failure is None:
            self.token_plane.beat_once()  # lest an end that was meant look like a crash

    def _is_over(self, engine_loop: EngineLoop, deadline: float) -> bool:
        return (
            (engine_loop.is_drained and self.token_plane.is_flushed)
            or self._failure is not None
            or self._abandoned.is_set()
            or self._clock.now() >= deadline
        )

    def _fail(self, error: Exception) -> None:
        _log.error("the engine has failed", exc_info=error)
        self._failure = error
        self._stopping.set()
