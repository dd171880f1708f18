"""The two ends of benchmarks/kv_transfer.py: a sender here, a receiver in a process of its own.

`python kv_transfer_peer.py DIRECTORY BLOCKS BLOCK_BYTES CORE` is the receiver; it ends with its input.
"""

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from atomesh.kv_transfer.factory import make_transport
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.transport import BlockPush, Heard, KVTransport, Pushed, TransportEvent
from atomesh.protocol.kv_handoff import Commit, Committed, Grant, Pull, Refuse
from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.ticket import Ticket

GRANT = b"benchmark grant!"
TICKET = Ticket(
    ticket_id=b"benchmark ticket", gateway="g", serial=1, request_id="r", prefill="p", decode="d", ttl_s=60.0
)
DEADLINE_S = 60.0
E = TypeVar("E", bound=TransportEvent)


def pin(core: int) -> None:
    """To the core of this number, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def identity(incarnation: str, block_bytes: int) -> KVIdentity:
    layout = KVLayout(
        name="benchmark",
        model="none",
        weights="none",
        dtype="float32",
        block_size=32,
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        block_bytes=block_bytes,
    )
    return KVIdentity(b"benchmark secret", incarnation, layout)


def touched_pool(num_blocks: int, block_bytes: int) -> PoolMemory:
    """Each block begins and ends with its number, and has a page behind every byte."""
    pool = PoolMemory(num_blocks, block_bytes)
    for number in range(num_blocks):
        block = pool.block(number)
        block[:] = bytes([number % 251]) * block_bytes
        block[:8] = block[-8:] = number.to_bytes(8, "little")
    return pool


def scattered(num_blocks: int, count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(num_blocks), count)  # noqa: S311 - nothing is kept secret


class Sender:
    """Prefill's end, over one transport. The receiver knows which of our blocks to expect for which index."""

    def __init__(self, listen: str, peer: str, pool: PoolMemory) -> None:
        self._news = threading.Event()
        self._peer = peer
        self._push_id = 0
        self.transport: KVTransport = make_transport(
            listen, pool, identity("p", pool.block_bytes), self._news.set
        )

    def open_grant(self, blocks: Sequence[int]) -> None:
        """Have the receiver grant indices 0 … n − 1, for `blocks`."""
        self.transport.send(self._peer, Pull(TICKET, GRANT, list(blocks)))
        self.wait(Heard)

    def push(self, blocks: Sequence[int], first: int = 0) -> None:
        self._push_id += 1
        pushes = [BlockPush(first + place, block) for place, block in enumerate(blocks)]
        self.transport.push(self._peer, GRANT, pushes, self._push_id, DEADLINE_S)

    def wait(self, kind: type[E], count: int = 1) -> None:
        """Until `count` events of `kind` have come. RuntimeError for any other."""
        while count > 0:
            self._news.wait()
            self._news.clear()
            for event in self.transport.poll():
                if not isinstance(event, kind):
                    raise RuntimeError(f"the transfer failed: {event}")
                count -= 1

    def close_grant(self, count: int) -> None:
        """Have the receiver look at all blocks. RuntimeError when one is not what it should be."""
        self.transport.send(self._peer, Commit(TICKET.ticket_id, GRANT, count))
        while True:
            self._news.wait()
            self._news.clear()
            for event in self.transport.poll():
                if isinstance(event, Heard) and isinstance(event.message, Committed):
                    return
                raise RuntimeError(f"the receiver has not got what was sent: {event}")

    def push_s(self, blocks: Sequence[int]) -> float:
        """Seconds from the call until the receiver's word that it has all of them."""
        self.open_grant(blocks)
        begin = perf_counter()
        self.push(blocks)
        self.wait(Pushed)
        seconds = perf_counter() - begin
        self.close_grant(len(blocks))
        return seconds


class ReceiverProcess:
    """Decode's end, on a core of its own, over both transports at once."""

    def __init__(self, directory: Path, num_blocks: int, block_bytes: int, core: int) -> None:
        arguments = [str(directory), str(num_blocks), str(block_bytes), str(core)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.addresses: dict[str, str] = json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Receiver:
    def __init__(self, listen: str, pool: PoolMemory, news: threading.Event) -> None:
        self._pool = pool
        self._expected: list[int] = []
        self._targets: list[int] = []
        self._seed = 0
        self.transport = make_transport(listen, pool, identity("d", pool.block_bytes), news.set)

    def answer(self) -> None:
        for event in self.transport.poll():
            match event:
                case Heard(peer, Pull(_, grant, blocks)):
                    self._admit(peer, grant, blocks)
                case Heard(peer, Commit(ticket_id, grant, count)):
                    is_whole = self._check(count)
                    self.transport.cancel(grant)
                    self.transport.send(
                        peer, Committed(ticket_id) if is_whole else Refuse(ticket_id, "coverage")
                    )

    def _admit(self, peer: str, grant: bytes, blocks: list[int]) -> None:
        self._seed += 1
        self._expected = blocks
        self._targets = scattered(self._pool.num_blocks, len(blocks), self._seed)
        for target in self._targets:
            block = self._pool.block(target)
            block[:8] = block[-8:] = bytes(8)
        self.transport.admit(peer, grant, dict(enumerate(self._targets)))
        self.transport.send(peer, Grant(TICKET.ticket_id, grant, []))

    def _check(self, count: int) -> bool:
        blocks = [self._pool.block(target) for target in self._targets]
        found = [(bytes(block[:8]), bytes(block[-8:])) for block in blocks]
        wanted = [number.to_bytes(8, "little") for number in self._expected]
        return len(found) == count and found == [(number, number) for number in wanted]


def receive(directory: Path, num_blocks: int, block_bytes: int, core: int) -> None:
    pin(core)
    pool = touched_pool(num_blocks, block_bytes)
    news, over = threading.Event(), threading.Event()
    listens = {"shm": f"unix:{directory}/receiver", "tcp": "127.0.0.1:0"}
    receivers = {name: Receiver(listen, pool, news) for name, listen in listens.items()}
    print(json.dumps({name: receiver.transport.address for name, receiver in receivers.items()}), flush=True)

    def until_closed() -> None:
        sys.stdin.read()
        over.set()
        news.set()

    threading.Thread(target=until_closed, daemon=True).start()
    while not over.is_set():
        news.wait()
        news.clear()
        for receiver in receivers.values():
            receiver.answer()
    for receiver in receivers.values():
        receiver.transport.close()


if __name__ == "__main__":
    receive(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:]))
