"""One who meddles with a worker's KV plane: a stranger with raw bytes, or a member who breaks the rules."""

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from atomesh.kv_transfer.factory import make_transport
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.socket_transport import SocketTransport
from atomesh.kv_transfer.transport import BlockPush, Heard, TransportEvent
from atomesh.protocol.address import UnixAddress, parse_address
from atomesh.protocol.kv_handoff import HandoffMessage
from atomesh.protocol.worker import WorkerDescription
from atomesh.testing.token_peer import TokenPeer

PATIENCE_S = 10.0
E = TypeVar("E")


def connect(address: str) -> socket.socket:
    parsed = parse_address(address)
    if isinstance(parsed, UnixAddress):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE_S)
        sock.connect(parsed.path)
        return sock
    return socket.create_connection((parsed.host, parsed.port), timeout=PATIENCE_S)


def ask_who(address: str, secret: bytes) -> WorkerDescription:
    """What the worker at this token-plane address says to a gateway."""
    with connect(address) as sock:
        return TokenPeer(sock, secret).hello()


class Impostor:
    """Takes part in hand-offs as if it were a prefill worker of the cluster."""

    def __init__(self, transport: SocketTransport, worker: WorkerDescription, incarnation: str) -> None:
        self.transport = transport
        self.incarnation = incarnation
        self.events: list[TransportEvent] = []
        self._worker = worker.kv_address or ""

    def send(self, message: HandoffMessage) -> None:
        self.transport.send(self._worker, message)

    def push(self, grant: bytes, blocks: int, push_id: int) -> None:
        pushes = [BlockPush(index, index) for index in range(blocks)]
        self.transport.push(self._worker, grant, pushes, push_id, 5.0)

    def next_event(self, kind: type[E]) -> E:
        """The next event of this kind. Raises AssertionError when none comes."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.events += self.transport.poll()
            for event in self.events:
                if isinstance(event, kind):
                    self.events.remove(event)
                    return event
            time.sleep(0.005)
        raise AssertionError(f"no {kind.__name__} has come, but {self.events}")

    def answer(self) -> HandoffMessage:
        return self.next_event(Heard).message


@contextmanager
def impostor(worker: WorkerDescription, secret: bytes, directory: Path) -> Iterator[Impostor]:
    """With the cluster's own secret and the worker's layout; gone at the end of the block."""
    if worker.kv_layout is None or worker.kv_address is None:
        raise AssertionError("the worker has no KV plane")
    is_unix = worker.kv_address.startswith("unix:")
    listen = f"unix:{directory}/impostor.kv" if is_unix else "127.0.0.1:0"
    incarnation = secrets.token_hex(16)
    memory = PoolMemory(16, worker.kv_layout.block_bytes)
    identity = KVIdentity(secret, incarnation, worker.kv_layout)
    transport = make_transport(listen, memory, identity, lambda: None)
    try:
        yield Impostor(transport, worker, incarnation)
    finally:
        transport.close()
        memory.close()
