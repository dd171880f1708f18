"""An ATOM worker as the mesh sees it: reached over the token plane, and again whenever it comes back."""

import asyncio
import logging
from collections import Counter

from atomesh.clock import Clock
from atomesh.errors import AtomeshError
from atomesh.mesh.backends.knowledge import Knowledge
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.mesh.backends.worker_connection import HungUpError, News, WorkerConnection
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.backends.worker_news import WorkerNews
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.protocol.address import UnixAddress, parse_address
from atomesh.protocol.frames import (
    Abort,
    Inspected,
    ResetPrefixCache,
    RoleSet,
    SetFault,
    SetRole,
    StartProfile,
)
from atomesh.protocol.generation import GenerationRequest, Leg
from atomesh.protocol.kv_events import KVSnapshot, RequestKVSnapshot
from atomesh.protocol.sealed_channel import ChannelError
from atomesh.protocol.step_trace import StepTrace, TraceLimits
from atomesh.protocol.worker import RoleWeights, WorkerDescription
from atomesh.sparse_log import SparseLog

_log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
LOST_S = 2.5  # with WATCH_S, a frozen worker is lost within 3 s
WATCH_S = 0.25
INSPECT_S = 2.0
PROFILE_S = 10.0  # a step may be long, and what is noted of them is not little
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 0.5
FAULT_LOG_S = 10.0
HUNG_UP = "hung_up"


class SilentWorkerError(Exception):
    """The connection stands, but nothing comes over it."""


class AtomBackend:
    """`run` keeps the connection; the registry hears what becomes of it.

    `faults` counts the connections that ended because the peer was none of ours or somebody meddled with
    them, by ChannelError's fault, and as "hung_up" those that the peer ended before it said who it was.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        registry: WorkerRegistry,
        clock: Clock,
        knowledge: Knowledge | None = None,
        faults: Counter[str] | None = None,
    ) -> None:
        """Raises ConfigurationError when `address` is none. The worker's news add to `knowledge`.

        `faults` where several share theirs.
        """
        self.address = address
        self._parsed = parse_address(address)
        self._secret = secret
        self._registry = registry
        self._clock = clock
        self._knowledge = knowledge or Knowledge()
        self._connection: WorkerConnection | None = None
        self._news: WorkerNews | None = None
        self._is_missed = False
        self._is_leaving = False
        self._sparse_log = SparseLog(clock, FAULT_LOG_S)
        self.faults: Counter[str] = Counter() if faults is None else faults
        registry.expect(address)

    async def run(self) -> None:
        """Connect, and reconnect with back-off, until cancelled."""
        delay = FIRST_DELAY_S
        while True:
            try:
                await self._live_once()
                delay = FIRST_DELAY_S
            except ChannelError as error:
                self._count(error.fault, error)
            except HungUpError as error:
                self._count(HUNG_UP, error)
            except (OSError, TimeoutError) as error:
                _log.debug("no connection to the worker at %s: %s", self.address, error)
            except SilentWorkerError:
                delay = FIRST_DELAY_S
                self._is_missed = True
                _log.warning("the worker at %s has been silent for %s s: given up", self.address, LOST_S)
            await asyncio.sleep(delay)
            delay = min(delay * 1.6, LONGEST_DELAY_S)

    def submit(self, request: GenerationRequest, leg: Leg | None) -> RequestStream:
        """The leg's deltas as they come; they fail with WorkerLostError where there is no connection."""
        if self._connection is not None:
            return self._connection.submit(request, leg)
        stream = RequestStream(request.n, lambda _: None)
        stream.fail(WorkerLostError())
        return stream

    def abort_attempt(self, request_id: str) -> None:
        """Let the worker forget what a hand-off has brought it for a leg that will not be sent."""
        if self._connection is not None:
            self._connection.send(Abort(request_id))

    def reset_prefix_cache(self) -> None:
        if self._connection is not None:
            self._connection.send(ResetPrefixCache())

    def set_role(self, weights: RoleWeights) -> None:
        """What placement offers the worker from now on; told again whenever it comes back."""
        self._registry.set_weights(self.address, weights)
        self._tell_role()

    def set_fault(self, fault: SetFault) -> None:
        if self._connection is not None:
            self._connection.send(fault)

    async def inspect(self) -> Inspected | None:
        """Who owns the worker's KV blocks; None when it is not there, or too busy to say."""
        if self._connection is None:
            return None
        try:
            return await asyncio.wait_for(self._connection.inspect(), INSPECT_S)
        except (TimeoutError, WorkerLostError):
            return None

    def start_profile(self, limits: TraceLimits) -> None:
        """Let the worker note what its steps do."""
        if self._connection is not None:
            self._connection.send(StartProfile(limits))

    async def stop_profile(self) -> StepTrace | None:
        """What the worker has noted; None when it has not, is not there, or is too busy to say."""
        if self._connection is None:
            return None
        try:
            return (await asyncio.wait_for(self._connection.stop_profile(), PROFILE_S)).trace
        except (TimeoutError, WorkerLostError):
            return None

    def fail_all(self, error: AtomeshError) -> None:
        """End every running request with `error`."""
        if self._connection is not None:
            self._connection.fail_all(error)

    async def _live_once(self) -> None:
        """One connection's whole life."""
        connection = await asyncio.wait_for(self._connect(), HANDSHAKE_S)
        try:
            worker = _without_texts(await asyncio.wait_for(connection.hello, HANDSHAKE_S))
            self._connection, self._is_leaving = connection, False
            self._registry.connected(self.address, worker, self._clock.now())
            self._news = WorkerNews(worker, self._knowledge, self._request_snapshot, self._clock.now())
            self._tell_role()
            self._say_ready(worker.worker_id)
            await self._watch(connection)
            self._is_missed = not self._is_leaving
            if connection.fault is not None:
                raise connection.fault
            self._say_gone(worker.worker_id)
        finally:
            connection.close()
            self._lost()

    def _say_gone(self, worker_id: str) -> None:
        if self._is_leaving:
            _log.info("worker %s (%s) has left, as it had said that it would", worker_id, self.address)
        else:
            _log.warning("worker %s (%s) has gone", worker_id, self.address)

    def _say_ready(self, worker_id: str) -> None:
        """As loudly as its going was told."""
        if self._is_missed:
            _log.warning("worker %s (%s) is back", worker_id, self.address)
        else:
            _log.info("worker %s (%s) is ready", worker_id, self.address)
        self._is_missed = False

    def _count(self, fault: str, error: Exception) -> None:
        self.faults[fault] += 1
        left_out = self._sparse_log.admit()
        if left_out is not None:
            counts = (self.address, fault, self.faults[fault], left_out)
            _log.warning("no worker of ours at %s (%s, %d so far; %d lines left out): %s", *counts, error)

    def _tell_role(self) -> None:
        """A worker that was not given another role than its own knows it already."""
        weights = self._registry.chosen_weights(self.address)
        if weights is not None and self._connection is not None:
            self._connection.send(SetRole(weights))

    def _request_snapshot(self) -> None:
        if self._connection is not None:
            self._connection.send(RequestKVSnapshot())

    async def _connect(self) -> WorkerConnection:
        loop = asyncio.get_running_loop()

        def protocol() -> WorkerConnection:
            return WorkerConnection(self._secret, self._heard, self._lost)

        if isinstance(self._parsed, UnixAddress):
            _, connection = await loop.create_unix_connection(protocol, self._parsed.path)
        else:
            _, connection = await loop.create_connection(protocol, self._parsed.host, self._parsed.port)
        return connection

    def _heard(self, news: News) -> None:
        now = self._clock.now()
        if isinstance(news, RoleSet):
            self._registry.set_weights(self.address, news.weights)
            return
        if not isinstance(news, KVSnapshot):
            self._is_leaving = news.load.draining
            self._registry.heard(self.address, news.load, now)
        if self._news is not None:
            self._news.hear(news, now)

    def _lost(self) -> None:
        self._connection = None
        if self._news is not None:
            self._news.close()
            self._news = None
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


def _without_texts(worker: WorkerDescription) -> WorkerDescription:
    """Raises ChannelError for one that wants to be given text, which nothing could bring it."""
    if worker.texts:
        raise ChannelError("message", "a worker that takes tokens says that it takes text")
    return worker
