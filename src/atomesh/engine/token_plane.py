"""The worker's end of the token plane: lets in gateways that know the secret, and does what they ask."""

import asyncio
import logging
import socket
from collections import Counter
from dataclasses import dataclass

import msgspec

from atomesh.clock import Clock
from atomesh.engine.engine_loop import EngineLoop
from atomesh.engine.gateway_connection import GatewayConnection, HandshakeError
from atomesh.errors import AtomeshError
from atomesh.listening import settle
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.frames import (
    Abort,
    GatewayMessage,
    Inspect,
    ResetPrefixCache,
    RoleSet,
    SetFault,
    SetRole,
    StartProfile,
    StopProfile,
    Submit,
    encode_message,
)
from atomesh.protocol.kv_events import RequestKVSnapshot
from atomesh.protocol.sealed_channel import ChannelError
from atomesh.protocol.worker import RoleWeights, WorkerDescription, nearest_role
from atomesh.sparse_log import SparseLog

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 128  # of gateways that have proved themselves
MAX_STRANGERS = 128  # who have not yet
HANDSHAKE_S = 3.0
HEARTBEAT_S = 0.25


@dataclass(frozen=True, slots=True)
class Identity:
    secret: bytes
    worker: WorkerDescription


class TokenPlaneServer:
    """`refusals` counts the connections that were cut off, by reason: `full`, if MAX_CONNECTIONS gateways are
    there; `crowd`, `timeout` and `handshake`, if a stranger was pushed out by the next, slow, or gone before
    the proof; else ChannelError's fault."""

    def __init__(
        self, identity: Identity, engine_loop: EngineLoop, clock: Clock, faults: FaultPoints | None = None
    ) -> None:
        self._secret = identity.secret
        self._worker = identity.worker
        self._engine_loop = engine_loop
        self._clock = clock
        self._faults = faults or NoFaults()
        self._peers: set[GatewayConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[GatewayConnection, asyncio.Task[None]] = {}  # the oldest first
        self._sparse_log = SparseLog(clock)
        self.refusals: Counter[str] = Counter()

    async def serve(self, listener: socket.socket) -> None:
        """Accept gateways on a listening, non-blocking socket until cancelled; then cut all off."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                sock = await _accept(loop, listener)
                self._welcome(sock, loop)
                await asyncio.sleep(0)  # however many call, those who are here have their turn
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def beat(self) -> None:
        """Tell the gateways that have heard nothing for a while that the engine is alive, until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if not self._engine_loop.is_healthy:
                continue
            quiet_since = self._clock.now() - HEARTBEAT_S
            for peer in self._peers:
                if peer.last_news <= quiet_since:
                    peer.send(self._engine_loop.heartbeat())

    def beat_once(self) -> None:
        """Tell all gateways how things are now."""
        for peer in self._peers:
            peer.send(self._engine_loop.heartbeat())

    @property
    def num_gateways(self) -> int:
        """Those that have proved themselves and are still there."""
        return len(self._peers)

    @property
    def is_flushed(self) -> bool:
        """The kernel has taken all that was sent."""
        return not any(peer.has_unsent for peer in self._peers)

    def _welcome(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            self._push_out_the_oldest()
        connection = GatewayConnection(sock, loop, self._clock, self._secret)
        task = loop.create_task(self._attend(connection))
        self._strangers[connection] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _push_out_the_oldest(self) -> None:
        """Who speaks at once has proved himself by the time that he would be the oldest."""
        oldest = next(iter(self._strangers))
        self._strangers.pop(oldest).cancel()
        self._refuse("crowd", f"{MAX_STRANGERS} others have called since, and it has proved nothing")

    async def _attend(self, connection: GatewayConnection) -> None:
        """One connection's whole life."""
        try:
            await self._let_in(connection)
            await self._obey(connection)
        except HandshakeError as error:
            self._refuse("handshake", str(error))
        except TimeoutError:
            self._refuse("timeout", f"it has proved nothing within {HANDSHAKE_S:g} s")
        except ChannelError as error:
            self._refuse(error.fault, str(error))
        except OSError as error:
            _log.debug("a gateway's connection broke: %s", error)
        finally:
            self._strangers.pop(connection, None)
            self._peers.discard(connection)
            self._engine_loop.drop(connection)
            connection.close()

    async def _let_in(self, connection: GatewayConnection) -> None:
        await asyncio.wait_for(connection.meet(), HANDSHAKE_S)
        self._strangers.pop(connection, None)
        if len(self._peers) >= MAX_CONNECTIONS:
            self._refuse("full", f"{MAX_CONNECTIONS} gateways are connected")
            return
        connection.introduce(self._worker)
        self._peers.add(connection)

    async def _obey(self, connection: GatewayConnection) -> None:
        while connection in self._peers and (messages := await connection.receive()) is not None:
            for message in messages:
                self._carry_out(message, connection)

    def _carry_out(self, message: GatewayMessage, connection: GatewayConnection) -> None:
        match message:
            case Submit(request, leg):
                self._engine_loop.submit(connection, request, leg)
            case Abort(request_id):
                self._engine_loop.abort(connection, request_id)
            case RequestKVSnapshot():
                self._engine_loop.follow(connection)
            case ResetPrefixCache():
                self._engine_loop.reset_prefix_cache()
            case SetRole(weights):
                self._set_role(weights)
            case Inspect(query_id):
                self._engine_loop.inspect(connection, query_id)
            case SetFault(point, count, argument):
                self._arm(point, count, argument)
            case StartProfile() | StopProfile():
                self._profile(message, connection)

    def _set_role(self, weights: RoleWeights) -> None:
        """Those that come later hear of it at their hello."""
        self._engine_loop.set_role(weights)
        self._worker = msgspec.structs.replace(self._worker, role=nearest_role(weights))
        told = encode_message(RoleSet(weights))
        for peer in self._peers:
            peer.send(told, is_news=False)

    def _arm(self, point: str, count: int, argument: float) -> None:
        try:
            self._faults.arm(point, count, argument)
        except AtomeshError as error:
            _log.warning("a fault was not armed: %s", error)

    def _profile(self, message: StartProfile | StopProfile, connection: GatewayConnection) -> None:
        if isinstance(message, StopProfile):
            self._engine_loop.stop_trace(connection, message.query_id)
            return
        try:
            message.limits.check()
        except AtomeshError as error:
            _log.warning("no steps are recorded: %s", error)
        else:
            self._engine_loop.start_trace(message.limits)

    def _refuse(self, reason: str, detail: str) -> None:
        self.refusals[reason] += 1
        left_out = self._sparse_log.admit()
        if left_out is not None:
            counts = (reason, self.refusals[reason], left_out)
            _log.warning("refused a gateway (%s, %d so far; %d lines left out): %s", *counts, detail)


async def _accept(loop: asyncio.AbstractEventLoop, listener: socket.socket) -> socket.socket:
    while True:
        try:
            sock, _ = await loop.sock_accept(listener)
        except OSError as error:  # the peer is already gone, or the process has no free descriptor
            _log.warning("could not accept a connection: %s", error)
            await asyncio.sleep(0.1)
            continue
        sock.setblocking(False)
        settle(sock)
        return sock
