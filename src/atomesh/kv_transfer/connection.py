"""One connection to a peer: its opening, its control messages, and the pushes that are under way on it.

How blocks travel is for the kinds of connection to say: shm.py, tcp.py. All of it runs in the transport's
thread, on a socket that never blocks.
"""

import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from atomesh.kv_transfer.channel import NONCE_BYTES, Channel, Side
from atomesh.kv_transfer.grants import GrantRefusal
from atomesh.kv_transfer.introduction import Introduction
from atomesh.kv_transfer.outbox import MAX_ITEMS, Item, Outbox
from atomesh.kv_transfer.plane import Plane
from atomesh.kv_transfer.transport import (
    LEAST_BYTES_S,
    BlockPush,
    Damaged,
    Heard,
    Pushed,
    PushFailed,
    Received,
)
from atomesh.kv_transfer.wire import Done, Hello, Proof, Refused, Said, WireMessage
from atomesh.protocol.kv_handoff import HandoffMessage
from atomesh.protocol.step_sample import TransferSample

READ_BYTES = 64 * 1024
LEAST_PATIENCE_S = 0.5
ROUND_BYTES = 8 * 2**20  # that one connection may move before the others have their turn


class ConnectionLost(Exception):
    """The connection ends here. `refusal` names what it is counted as, if it is to blame on the peer."""

    def __init__(self, reason: str, refusal: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refusal = refusal


@dataclass(slots=True)
class OutgoingPush:
    """`is_live` until it has ended; then nothing more is read from the pool for it."""

    push_id: int
    grant: bytes
    blocks: tuple[BlockPush, ...]
    is_live: bool = True
    has_begun: bool = False  # the peer may have heard of it

    @property
    def indices(self) -> list[int]:
        return [push.index for push in self.blocks]


class Keeper(Protocol):
    """Who owns the connections: the transport."""

    def opened(self, connection: "Connection", hello: Hello) -> None:
        """Names the peer, if it called us."""
        ...

    def guard(self, connection: "Connection", action: Callable[[], None]) -> None:
        """Run `action`; end the connection if it raises what ends one, or if it is closed."""
        ...


class Connection(ABC):
    """`peer` is its name for the hand-off: an address if we called it, else "" until its hello."""

    def __init__(self, plane: Plane, keeper: Keeper, sock: socket.socket, side: Side, peer: str) -> None:
        self.peer = peer
        self.sock = sock
        self.is_open = False
        self.is_closed = False
        self._plane = plane
        self._keeper = keeper
        self._channel = Channel(plane.identity.secret, side, secrets.token_bytes(NONCE_BYTES))
        self._introduction = Introduction(plane.identity)
        self._outbox = Outbox()
        self._until_open: list[Item] = []
        self._pushes: dict[int, OutgoingPush] = {}
        self._outbox.put(iter([memoryview(self._channel.greeting)]))

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outbox)

    @property
    def has_work(self) -> bool:
        """Whether `work` should be called although nothing has come."""
        return False

    def work(self) -> None:  # noqa: B027 - most kinds have none
        """A bounded slice of what there is to do besides reading and writing."""

    @abstractmethod
    def divert(self, grant: bytes, reason: str) -> None:
        """Not one byte more lands under `grant`; what was under way for it is refused."""

    @abstractmethod
    def _carry(self, push: OutgoingPush) -> Item:
        """How the push goes out; must look at `push.is_live` whenever it is resumed."""

    @abstractmethod
    def _give_up(self, push: OutgoingPush, failure: PushFailed) -> None:
        """The deadline has passed: emit `failure` once nobody makes use of the blocks any more."""

    @abstractmethod
    def _hear_of_blocks(self, message: WireMessage) -> None:
        """A message of this kind's own about pushes. Raises ChannelError for one that it does not know."""

    def send(self, message: HandoffMessage) -> None:
        self._put(self._frame(Said(message)))

    def push(self, push: OutgoingPush, deadline: float) -> None:
        self._pushes[push.push_id] = push
        self._put(self._carry(push))
        self._watch(push, deadline, max(deadline - self._plane.clock.now(), LEAST_PATIENCE_S))

    def read(self) -> None:
        """What has come, up to a bound. Raises ConnectionLost, ChannelError, OSError."""
        data = self._receive(READ_BYTES)
        if not data:
            raise ConnectionLost("the peer has closed the connection")
        was_keyed = self._channel.is_keyed
        self._channel.feed(data)
        if self._channel.is_keyed and not was_keyed:
            self._outbox.put(self._frame(Proof()))
        self._hear_all()

    def write(self) -> None:
        """As much as the kernel takes, up to a bound."""
        try:
            self._outbox.write(self._transmit, ROUND_BYTES)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Cut it; pushes that are under way end with it."""
        self.is_closed = True
        for push in self._pushes.values():
            push.is_live = False
        self._pushes.clear()
        self._plane.grants.drop_peer(self.peer)
        self.sock.close()

    def _receive(self, size: int) -> bytes:
        return self.sock.recv(size)

    def _transmit(self, piece: memoryview) -> int:
        return self.sock.send(piece)

    def _greet(self, hello: Hello) -> None:
        """The peer has proved himself; `hello` may go."""
        self._outbox.put(self._frame(hello))

    def _welcome(self) -> None:  # noqa: B027 - most kinds ask for no more
        """The peer's hello is good. Raises ConnectionLost if something else about him is not."""

    def _hear_all(self) -> None:
        while (message := self._next_message()) is not None:
            self._hear(message)

    def _next_message(self) -> WireMessage | None:
        return self._channel.next_message()

    def _hear(self, message: WireMessage) -> None:
        if not self.is_open:
            self._hear_introduction(message)
            return
        match message:
            case Said(said):
                self._plane.emit(Heard(self.peer, said, self._introduction.peer_incarnation))
            case Done(push_id):
                if self._end(push_id) is not None:
                    self._plane.emit(Pushed(push_id))
            case Refused(push_id, reason):
                if self._end(push_id) is not None:
                    self._plane.emit(PushFailed(push_id, reason))
            case _:
                self._hear_of_blocks(message)

    def _hear_introduction(self, message: WireMessage) -> None:
        answer = self._introduction.hear(message)
        if answer is not None:
            self._greet(answer)
        hello = self._introduction.peer
        if hello is not None:
            self._welcome()
            self._keeper.opened(self, hello)
            self.is_open = True
            for item in self._until_open:
                self._outbox.put(item)
            self._until_open.clear()

    def _frame(self, message: WireMessage) -> Item:
        yield memoryview(self._channel.encode(message))

    def _put(self, item: Item) -> None:
        if self._outbox.is_full or len(self._until_open) >= MAX_ITEMS:
            raise ConnectionLost("the peer does not read what is sent to it", "flood")
        if self.is_open:
            self._outbox.put(item)
        else:
            self._until_open.append(item)

    def _end(self, push_id: int) -> OutgoingPush | None:
        """The push is over, however it ended; None if it has been before."""
        push = self._pushes.pop(push_id, None)
        if push is not None:
            push.is_live = False
        return push

    def _num_through(self) -> int:
        """Bytes that have got through to the peer so far; 0 for what takes no time to."""
        return 0

    def _watch(self, push: OutgoingPush, deadline: float, patience_s: float) -> None:
        before = self._num_through()
        self._at(deadline, lambda: self._expire(push, patience_s, before))

    def _expire(self, push: OutgoingPush, patience_s: float, num_before: int) -> None:
        """Unless the link is slow, not still: then it has as long again."""
        if self._pushes.get(push.push_id) is not push:
            return
        if self._num_through() - num_before > patience_s * LEAST_BYTES_S:
            self._watch(push, self._plane.after(patience_s), patience_s)
            return
        self._end(push.push_id)
        self._give_up(push, PushFailed(push.push_id, "the deadline has passed"))

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._plane.timers.at(time, lambda: self._keeper.guard(self, action))

    def _claim(self, push_id: int, grant: bytes, indices: Sequence[int]) -> list[int] | None:
        """Our blocks for a push that has come; None if it has been refused."""
        try:
            return self._plane.grants.claim(self.peer, grant, indices)
        except GrantRefusal as refusal:
            self._plane.count_refusal("grant")
            if refusal.damages:
                self._damage(grant, refusal.reason)
            self._refuse(push_id, refusal.reason)
            return None

    def _accept(self, push_id: int, grant: bytes, indices: Sequence[int], began: float) -> None:
        """What was heard of first at `began` has come, and is verified."""
        plane = self._plane
        num_bytes, seconds = len(indices) * plane.pool.block_bytes, plane.clock.now() - began
        sample = TransferSample(self._introduction.peer_incarnation, num_bytes, seconds)
        plane.emit(Received(grant, tuple(indices), sample))
        self._put(self._frame(Done(push_id)))

    def _refuse(self, push_id: int, reason: str) -> None:
        self._put(self._frame(Refused(push_id, reason)))

    def _damage(self, grant: bytes, reason: str) -> None:
        self._plane.grants.void(grant)
        self.divert(grant, reason)
        self._plane.emit(Damaged(grant, reason))
