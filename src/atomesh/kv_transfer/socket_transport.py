"""A KV transport over sockets: one thread that serves every connection, whatever way its blocks travel."""

import logging
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from atomesh.errors import ConfigurationError
from atomesh.kv_transfer.channel import ChannelError
from atomesh.kv_transfer.connection import Connection, ConnectionLost, OutgoingPush
from atomesh.kv_transfer.introduction import LayoutError
from atomesh.kv_transfer.kinds import connection_class
from atomesh.kv_transfer.plane import Plane
from atomesh.kv_transfer.sockets import call, listen
from atomesh.kv_transfer.strangers import Strangers
from atomesh.kv_transfer.transport import BlockPush, Fenced, PeerLost, Pushed, PushFailed, TransportEvent
from atomesh.kv_transfer.wire import Hello
from atomesh.listening import bound_address, forget, settle
from atomesh.protocol.address import Address, parse_address
from atomesh.protocol.kv_handoff import HandoffMessage

HELLO_DEADLINE_S = 5.0
MAX_STRANGERS = 128  # who have called and not said hello yet
MAX_EVENTS = 20_000  # unread, before nothing more is read from anyone
Command = Callable[[], None]

log = logging.getLogger(__name__)


class SocketTransport:
    """Implements `kv_transfer.transport.KVTransport`."""

    def __init__(self, address: Address, plane: Plane, on_event: Callable[[], None]) -> None:
        """Listens from now on; `on_event` is called in the thread when there is something to poll, or
        something was refused.

        Raises ConfigurationError when the address cannot be had.
        """
        self._plane = plane
        self._on_event = on_event
        self._listener = listen(address)
        self._address = bound_address(self._listener, address)
        self._connections: dict[Connection, int] = {}  # and the events it is registered for
        self._peers: dict[str, Connection] = {}
        self._strangers: Strangers[Connection] = Strangers()
        self._accepted = 0
        self._commands: deque[Command] = deque()
        self._is_closing = False
        self._is_woken = False
        self._waker, self._wakened = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (self._wakened, self._waker):
            sock.setblocking(False)
        self._selector.register(self._wakened, selectors.EVENT_READ, self._fall_awake)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, name="kv-transfer", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return str(self._address)

    @property
    def refusals(self) -> Counter[str]:
        """How often what was refused, by `kv_outcomes.PLANE_REFUSALS`."""
        return Counter(dict(self._plane.refusals))

    def send(self, peer: str, message: HandoffMessage) -> None:
        self._command(partial(self._send, peer, message))

    def push(
        self, peer: str, grant: bytes, blocks: Sequence[BlockPush], push_id: int, deadline_s: float
    ) -> None:
        push = OutgoingPush(push_id, grant, tuple(blocks))
        self._command(partial(self._push, peer, push, self._plane.after(deadline_s)))

    def admit(self, peer: str, grant: bytes, targets: Mapping[int, int]) -> None:
        self._command(partial(self._admit, peer, grant, dict(targets)))

    def cancel(self, grant: bytes) -> None:
        self._command(partial(self._cancel, grant))

    def poll(self) -> list[TransportEvent]:
        events: list[TransportEvent] = []
        unread = self._plane.events
        was_full = len(unread) >= MAX_EVENTS
        while unread:
            events.append(unread.popleft())
        if was_full:
            self._wake()
        return events

    def close(self) -> None:
        self._is_closing = True
        self._wake()
        self._thread.join()

    # From here on: the transport's own thread.

    def opened(self, connection: Connection, hello: Hello) -> None:
        if not connection.peer:
            self._accepted += 1
            connection.peer = f"#{self._accepted} {hello.incarnation}"
            self._peers[connection.peer] = connection
            self._strangers.discard(connection)

    def guard(self, connection: Connection, action: Command) -> None:
        if connection.is_closed:
            return
        try:
            action()
        except BlockingIOError:
            return
        except ConnectionLost as lost:
            self._lose(connection, lost.reason, lost.refusal)
        except LayoutError as error:
            self._lose(connection, str(error), "layout")
        except ChannelError as error:
            self._lose(connection, str(error), error.fault)
        except OSError as error:
            self._lose(connection, error.strerror or str(error))
        except Exception:  # a fault of ours on one connection is not to end the others
            log.exception("the KV connection to %s has failed", connection.peer)
            self._lose(connection, "an internal error")

    def _command(self, command: Command) -> None:
        self._commands.append(command)
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            with suppress(OSError):  # the thread has ended, and nothing is left to be woken
                self._waker.send(b"\0")

    def _fall_awake(self) -> None:
        self._wakened.recv(64)
        self._is_woken = False

    def _run(self) -> None:
        while not self._is_closing:
            try:
                self._round()
            except Exception:  # every push is to end, whatever has happened here
                log.exception("the KV transport has failed, and begins anew")
                self._lose_all("an internal error")
        self._lose_all("the transport has closed")
        self._selector.close()
        for sock in (self._listener, self._waker, self._wakened):
            sock.close()
        forget(self._address)

    def _round(self) -> None:
        self._register()
        for key, events in self._selector.select(self._patience()):
            if isinstance(key.data, Connection):
                self._serve(key.data, events)
            else:
                key.data()
        while self._commands:
            self._commands.popleft()()
        for connection in [connection for connection in self._connections if connection.has_work]:
            self.guard(connection, connection.work)
        now = self._plane.clock.now()
        for action in self._plane.timers.take_due(now):
            action()
        for stranger in self._strangers.overdue(now):
            self._lose(stranger, *_too_late())
        if self._plane.take_news():
            self._on_event()
        for connection in [connection for connection in self._connections if connection.is_open]:
            if connection.wants_to_write:
                self.guard(connection, connection.write)  # most often the kernel takes it all at once

    def _patience(self) -> float | None:
        if (
            self._commands
            or self._plane.has_news
            or any(connection.has_work for connection in self._connections)
        ):
            return 0.0
        dues = (self._plane.timers.next(), self._strangers.next_deadline())
        due = min((due for due in dues if due is not None), default=None)
        return None if due is None else max(0.0, due - self._plane.clock.now())

    def _register(self) -> None:
        may_read = len(self._plane.events) < MAX_EVENTS
        for connection, registered in self._connections.items():
            wanted = selectors.EVENT_READ if may_read else 0
            if connection.wants_to_write:
                wanted |= selectors.EVENT_WRITE
            if wanted == registered:
                continue
            if registered == 0:
                self._selector.register(connection.sock, wanted, connection)
            elif wanted == 0:
                self._selector.unregister(connection.sock)
            else:
                self._selector.modify(connection.sock, wanted, connection)
            self._connections[connection] = wanted

    def _serve(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_READ:
            self.guard(connection, connection.read)
        if events & selectors.EVENT_WRITE:
            self.guard(connection, connection.write)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= MAX_STRANGERS:
            self._lose(self._strangers.oldest(), "others have called since its call", "crowd")
        sock.setblocking(False)
        settle(sock)
        kind = connection_class(self._address)
        stranger = kind(self._plane, self, sock, "listener", "")
        self._connections[stranger] = 0
        self._strangers.add(stranger, self._plane.after(HELLO_DEADLINE_S))

    def _expect_hello(self, connection: Connection) -> None:
        """Of one whom we have called."""
        self._connections[connection] = 0
        self._plane.timers.at(
            self._plane.after(HELLO_DEADLINE_S),
            lambda: self.guard(connection, partial(_must_be_open, connection)),
        )

    def _reach(self, peer: str) -> Connection | None:
        """None, and PeerLost, if there is no way; None alone if that has been said of a caller before."""
        connection = self._peers.get(peer)
        if connection is not None or peer.startswith("#"):
            return connection
        try:
            address = parse_address(peer)
            connection = connection_class(address)(self._plane, self, call(address), "caller", peer)
        except (OSError, ValueError, ConfigurationError) as error:
            self._plane.emit(PeerLost(peer, getattr(error, "strerror", None) or str(error)))
            return None
        self._peers[peer] = connection
        self._expect_hello(connection)
        return connection

    def _send(self, peer: str, message: HandoffMessage) -> None:
        connection = self._reach(peer)
        if connection is not None:
            self.guard(connection, partial(connection.send, message))

    def _push(self, peer: str, push: OutgoingPush, deadline: float) -> None:
        faults, timers = self._plane.faults, self._plane.timers
        if faults.fires("kv_drop_push"):
            failure = PushFailed(push.push_id, "the deadline has passed")
            timers.at(deadline, partial(self._plane.emit, failure))
            return
        if faults.fires("kv_partial_push"):
            push.blocks = push.blocks[: len(push.blocks) // 2]
        delay = faults.take("kv_delay_push")
        if delay is None:
            self._start_push(peer, push, deadline)
        else:
            timers.at(self._plane.after(delay), partial(self._start_push, peer, push, deadline))

    def _start_push(self, peer: str, push: OutgoingPush, deadline: float) -> None:
        if not push.blocks:
            self._plane.emit(Pushed(push.push_id))
            return
        connection = self._reach(peer)
        if connection is None:
            self._plane.emit(PushFailed(push.push_id, "the peer is gone"))
        else:
            self.guard(connection, partial(connection.push, push, deadline))

    def _admit(self, peer: str, grant: bytes, targets: Mapping[int, int]) -> None:
        if self._reach(peer) is not None:
            self._plane.grants.admit(peer, grant, targets)

    def _cancel(self, grant: bytes) -> None:
        self._plane.grants.cancel(grant)
        for connection in list(self._connections):
            self.guard(connection, partial(connection.divert, grant, "the grant was cancelled"))
        self._plane.emit(Fenced(grant))

    def _lose(self, connection: Connection, reason: str, refusal: str | None = None) -> None:
        if self._connections.pop(connection):
            self._selector.unregister(connection.sock)
        self._strangers.discard(connection)
        if refusal is not None:
            self._plane.count_refusal(refusal)
            if not connection.is_open:
                _let_the_peer_see_why(connection)
        connection.close()
        if connection.peer:
            del self._peers[connection.peer]
            self._plane.emit(PeerLost(connection.peer, reason))

    def _lose_all(self, reason: str) -> None:
        for connection in list(self._connections):
            self._lose(connection, reason)


def _let_the_peer_see_why(connection: Connection) -> None:
    """Our proof and hello, if they are still to be written: it will find what is amiss as we did."""
    with suppress(OSError, ChannelError):
        connection.write()


def _must_be_open(connection: Connection) -> None:
    if not connection.is_open:
        raise ConnectionLost(*_too_late())


def _too_late() -> tuple[str, str]:
    return f"no hello within {HELLO_DEADLINE_S:g} s", "timeout"
