"""An ATOM worker as the mesh sees it: reached over the token plane, and again whenever it comes back."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.mesh.backends.worker_connection import WorkerConnection
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.protocol.address import UnixAddress, parse_address
from atomesh.protocol.frames import FrameError, ResetPrefixCache
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport

_log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
LOST_S = 3.0
WATCH_S = 0.25
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 0.5


class SilentWorkerError(Exception):
    """The connection stands, but nothing comes over it."""


class AtomBackend:
    """`run` keeps the connection; the registry hears what becomes of it."""

    def __init__(self, address: str, secret: bytes, registry: WorkerRegistry, clock: Clock) -> None:
        """Raises ConfigurationError when `address` is none."""
        self.address = address
        self._parsed = parse_address(address)
        self._secret = secret
        self._registry = registry
        self._clock = clock
        self._connection: WorkerConnection | None = None
        registry.expect(address)

    async def run(self) -> None:
        """Connect, and reconnect with back-off, until cancelled."""
        delay = FIRST_DELAY_S
        while True:
            try:
                await self._live_once()
                delay = FIRST_DELAY_S
            except (FrameError, OSError, TimeoutError) as error:
                _log.debug("no connection to the worker at %s: %s", self.address, error)
            except SilentWorkerError:
                delay = FIRST_DELAY_S
                _log.warning("the worker at %s has been silent for %s s: given up", self.address, LOST_S)
            await asyncio.sleep(delay)
            delay = min(delay * 1.6, LONGEST_DELAY_S)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """The request's deltas, a list a step. Closing it early aborts the request. Raises AtomeshError."""
        connection = self._connection
        if connection is None:
            raise ServiceUnavailableError("the worker is not connected; try again in a moment")
        stream = connection.submit(request)
        try:
            while (deltas := await stream.next()) is not None:
                yield deltas
        finally:
            connection.leave(request.request_id)

    def reset_prefix_cache(self) -> None:
        if self._connection is not None:
            self._connection.send(ResetPrefixCache())

    def fail_all(self, error: AtomeshError) -> None:
        """End every running request with `error`."""
        if self._connection is not None:
            self._connection.fail_all(error)

    async def _live_once(self) -> None:
        """One connection's whole life."""
        connection = await asyncio.wait_for(self._connect(), HANDSHAKE_S)
        try:
            worker = await asyncio.wait_for(connection.hello, HANDSHAKE_S)
            self._connection = connection
            self._registry.connected(self.address, worker, self._clock.now())
            _log.info("worker %s (%s) is ready", worker.worker_id, self.address)
            await self._watch(connection)
            _log.warning("worker %s (%s) has gone", worker.worker_id, self.address)
        finally:
            connection.close()
            self._lost()

    async def _connect(self) -> WorkerConnection:
        loop = asyncio.get_running_loop()

        def protocol() -> WorkerConnection:
            return WorkerConnection(self._secret, self._heard, self._lost)

        if isinstance(self._parsed, UnixAddress):
            _, connection = await loop.create_unix_connection(protocol, self._parsed.path)
        else:
            _, connection = await loop.create_connection(protocol, self._parsed.host, self._parsed.port)
        return connection

    def _heard(self, load: LoadReport) -> None:
        self._registry.heard(self.address, load, self._clock.now())

    def _lost(self) -> None:
        self._connection = None
        self._registry.lost(self.address)

    async def _watch(self, connection: WorkerConnection) -> None:
        """Returns when the connection has closed. Raises SilentWorkerError after LOST_S without a word."""
        while not connection.closed.done():
            began = self._clock.now()
            await asyncio.wait((connection.closed,), timeout=WATCH_S)
            now = self._clock.now()
            was_awake = (
                now - began < 2 * WATCH_S
            )  # else it is this process that slept: what came is still unread
            if was_awake and now - self._registry.heard_at(self.address) > LOST_S:
                raise SilentWorkerError
