"""A KV transport without threads or sockets: what one side does, the other finds with its next `poll`."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from atomesh.kv_transfer.grants import GrantRefusal, Grants
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.transport import (
    BlockPush,
    Damaged,
    Fenced,
    Heard,
    PeerLost,
    Pushed,
    PushFailed,
    Received,
    TransportEvent,
)
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.kv_handoff import HandoffMessage
from atomesh.protocol.kv_layout import difference


class LoopbackNetwork:
    """Where loopback transports find each other; `cut` takes a connection away."""

    def __init__(self) -> None:
        self.transports: dict[str, LoopbackTransport] = {}

    def transport(
        self,
        address: str,
        pool: PoolMemory,
        identity: KVIdentity,
        on_event: Callable[[], None] = lambda: None,
        faults: FaultPoints | None = None,
    ) -> "LoopbackTransport":
        return LoopbackTransport(self, address, pool, identity, on_event, faults)

    def cut(self, address: str) -> None:
        """Every connection of the transport at `address` breaks; it may be called again."""
        self.transports[address].lose_all("the connection was cut")


class LoopbackTransport:
    """Implements `kv_transfer.transport.KVTransport`; all of it within the caller's thread.

    Blocks are copied at once, so that a push only fails when it is refused, or dropped by a fault point, in
    which case it ends at once as if its deadline had passed.
    """

    def __init__(
        self,
        network: LoopbackNetwork,
        address: str,
        pool: PoolMemory,
        identity: KVIdentity,
        on_event: Callable[[], None],
        faults: FaultPoints | None,
    ) -> None:
        self.address = address
        self.refusals: Counter[str] = Counter()
        self._network = network
        self._pool = pool
        self._identity = identity
        self._on_event = on_event
        self._faults = faults or NoFaults()
        self._grants = Grants()
        self._events: deque[TransportEvent] = deque()
        self._peers: dict[str, tuple[LoopbackTransport, str]] = {}  # and what it calls us
        self._callers = 0
        network.transports[address] = self

    def send(self, peer: str, message: HandoffMessage) -> None:
        found = self._reach(peer)
        if found is not None:
            other, our_name = found
            other.emit(Heard(our_name, message, self._identity.incarnation))

    def push(
        self, peer: str, grant: bytes, blocks: Sequence[BlockPush], push_id: int, deadline_s: float
    ) -> None:
        found = self._reach(peer)
        if found is None:
            self.emit(PushFailed(push_id, "the peer is gone"))
            return
        if self._faults.fires("kv_drop_push"):
            self.emit(PushFailed(push_id, f"not received within {deadline_s} s"))
            return
        other, our_name = found
        kept = blocks[: len(blocks) // 2] if self._faults.fires("kv_partial_push") else blocks
        refusal = other.receive(
            our_name, grant, [(push.index, self._pool.block(push.block)) for push in kept]
        )
        self.emit(Pushed(push_id) if refusal is None else PushFailed(push_id, refusal))

    def admit(self, peer: str, grant: bytes, targets: Mapping[int, int]) -> None:
        if self._reach(peer) is not None:
            self._grants.admit(peer, grant, targets)

    def cancel(self, grant: bytes) -> None:
        self._grants.cancel(grant)
        self.emit(Fenced(grant))

    def poll(self) -> list[TransportEvent]:
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        self.lose_all("the peer has closed the connection")
        self._events.clear()
        self._network.transports.pop(self.address, None)

    def emit(self, event: TransportEvent) -> None:
        self._events.append(event)
        self._on_event()

    def receive(self, peer: str, grant: bytes, blocks: Sequence[tuple[int, memoryview]]) -> str | None:
        """The blocks by index in the sequence; why not, or None."""
        indices = tuple(index for index, _ in blocks)
        if not indices:
            return None
        try:
            targets = self._grants.claim(peer, grant, indices)
        except GrantRefusal as refusal:
            self.refusals["grant"] += 1
            if refusal.damages:
                self._grants.void(grant)
                self.emit(Damaged(grant, refusal.reason))
            return refusal.reason
        for target, (_, content) in zip(targets, blocks, strict=True):
            self._pool.block(target)[:] = content
        self.emit(Received(grant, indices))
        return None

    def accept(self, caller: "LoopbackTransport", name: str) -> str | None:
        """What we call the caller, or None: it was refused."""
        if self._objection(caller) is not None:
            self.refusals["hello"] += 1
            return None
        self._callers += 1
        our_name = f"#{self._callers} {caller._identity.incarnation}"
        self._peers[our_name] = (caller, name)
        return our_name

    def lose_all(self, reason: str) -> None:
        for name, (other, our_name) in list(self._peers.items()):
            self.lose(name, reason)
            other.lose(our_name, reason)

    def lose(self, name: str, reason: str) -> None:
        if self._peers.pop(name, None) is not None:
            self._grants.drop_peer(name)
            self.emit(PeerLost(name, reason))

    def _reach(self, peer: str) -> "tuple[LoopbackTransport, str] | None":
        if peer in self._peers or peer.startswith("#"):
            return self._peers.get(peer)
        other = self._network.transports.get(peer)
        if other is None:
            self.emit(PeerLost(peer, "nobody listens there"))
            return None
        our_name = other.accept(self, peer)
        if our_name is None:
            self.emit(PeerLost(peer, self._objection(other) or "refused"))
            return None
        self._peers[peer] = (other, our_name)
        return other, our_name

    def _objection(self, other: "LoopbackTransport") -> str | None:
        if self._identity.secret != other._identity.secret:
            return "the peer does not know the cluster secret"
        return difference(self._identity.layout, other._identity.layout)
