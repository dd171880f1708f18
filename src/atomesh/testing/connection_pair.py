"""Two KV connections over a socket pair without a thread: the test says who reads, writes and works when."""

import socket
from collections.abc import Callable

from atomesh.kv_transfer.connection import Connection
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.plane import Plane
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.transport import TransportEvent
from atomesh.kv_transfer.wire import Hello
from atomesh.protocol.fault_points import FaultPoints
from atomesh.testing.manual_clock import ManualClock


class ConnectionEnd:
    """One side: its connection, pool and events. Implements `connection.Keeper`; what is raised is raised."""

    def __init__(
        self, kind: type[Connection], sock: socket.socket, pool: PoolMemory, identity: KVIdentity, peer: str
    ) -> None:
        self.faults = FaultPoints()
        self.clock = ManualClock()
        self.plane = Plane(pool, identity, self.faults, self.clock)
        self.pool = pool
        sock.setblocking(False)
        self.connection = kind(self.plane, self, sock, "caller" if peer == "listener" else "listener", peer)

    def opened(self, connection: Connection, hello: Hello) -> None:
        """Both have their names from the beginning."""

    def guard(self, connection: Connection, action: Callable[[], None]) -> None:
        action()

    def read(self) -> None:
        """Whatever has come by now."""
        try:
            while True:
                self.connection.read()
        except BlockingIOError:
            return

    def write(self) -> None:
        """Whatever the kernel takes by now."""
        self.connection.write()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for action in self.plane.timers.take_due(self.clock.now()):
            action()

    def events(self) -> list[TransportEvent]:
        """Those that are new."""
        events = list(self.plane.events)
        self.plane.events.clear()
        return events


class ConnectionPair:
    """`caller` and `listener`, which know each other by these names, their hellos said."""

    def __init__(
        self, kind: type[Connection], pools: tuple[PoolMemory, PoolMemory], identity: KVIdentity
    ) -> None:
        sockets = socket.socketpair()
        self.caller = ConnectionEnd(kind, sockets[0], pools[0], identity, "listener")
        self.listener = ConnectionEnd(kind, sockets[1], pools[1], identity, "caller")
        self.exchange()

    def exchange(self) -> None:
        """Until neither side has anything to say or to copy."""
        ends = (self.caller, self.listener)
        while any(end.connection.wants_to_write or end.connection.has_work for end in ends):
            for end in ends:
                end.write()
                end.connection.work()
            for end in ends:
                end.read()

    def close(self) -> None:
        for end in (self.caller, self.listener):
            end.connection.close()
            end.pool.close()
