"""Blocks by shared memory: the sender says which are ready, the receiver copies them out of his pool.

Each side maps the other's pool, only to read. What makes the copy safe is an order of events: a sender takes
a push back (Stop, or the end of the connection) before its blocks may change, and a receiver looks for that
after it has copied and before it believes what it has copied. So a receiver that was frozen in between throws
its copy away, and a sender never waits for it.
"""

import ctypes
import fcntl
import mmap
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from atomesh.kv_transfer.channel import ChannelError, Side
from atomesh.kv_transfer.connection import ROUND_BYTES, Connection, ConnectionLost, Keeper, OutgoingPush
from atomesh.kv_transfer.outbox import Item
from atomesh.kv_transfer.plane import Plane
from atomesh.kv_transfer.pool_memory import SHAPE_SEALS
from atomesh.kv_transfer.transport import PushFailed
from atomesh.kv_transfer.wire import Hello, Notice, Stop, WireMessage

SLICE_BYTES = 4 * 2**20  # copied by one native call, without the interpreter's lock
MAP_BYTES = 16 * 2**20  # mapped at once
MADV_POPULATE_READ = 22  # Linux 5.14; elsewhere pages are mapped one by one when they are first read
MAX_COPIES = 4096  # that wait at once
STOP_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Addresses of this process, and bytes."""

    target: int
    source: int
    size: int


@dataclass(slots=True, eq=False)
class _Copy:
    notice: Notice
    pieces: Iterator[_Piece]
    began: float


class _PeerPool:
    """A peer's pool, mapped read-only."""

    def __init__(self, fd: int, block_bytes: int) -> None:
        """Raises ConnectionLost for anything but a sealed memfd that holds whole blocks."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise ConnectionLost("its pool is not a memfd", "memory") from error
        size = os.fstat(fd).st_size
        if seals & SHAPE_SEALS != SHAPE_SEALS or size == 0 or size % block_bytes:
            raise ConnectionLost(f"its pool of {size} bytes is not sealed, or not made of blocks", "memory")
        self.num_blocks = size // block_bytes
        self._mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._bytes = np.frombuffer(self._mapping, np.uint8)
        self.address = int(self._bytes.ctypes.data)
        self._size = size
        self._mapped = 0

    @property
    def is_mapped(self) -> bool:
        return self._mapped >= self._size

    def map_more(self) -> None:
        """Have the kernel map another stretch, so that no copy waits for it."""
        start = ctypes.c_void_p(self.address + self._mapped)
        size = ctypes.c_size_t(min(MAP_BYTES, self._size - self._mapped))
        failed = ctypes.CDLL(None).madvise(start, size, MADV_POPULATE_READ)
        self._mapped = self._size if failed else self._mapped + MAP_BYTES

    def close(self) -> None:
        del self._bytes
        self._mapping.close()


class ShmConnection(Connection):
    def __init__(self, plane: Plane, keeper: Keeper, sock: socket.socket, side: Side, peer: str) -> None:
        super().__init__(plane, keeper, sock, side, peer)
        self._to_pass: list[int] = []  # descriptors that go with the next bytes
        self._passed: list[int] = []
        self._peer_pool: _PeerPool | None = None
        self._copies: deque[_Copy] = deque()
        self._stopping: set[int] = set()

    @property
    def has_work(self) -> bool:
        return bool(self._copies) or (self._peer_pool is not None and not self._peer_pool.is_mapped)

    def work(self) -> None:
        if self._copies:
            self._copy()
        elif self._peer_pool is not None and not self._peer_pool.is_mapped:
            self._peer_pool.map_more()

    def divert(self, grant: bytes, reason: str) -> None:
        for copy in [copy for copy in self._copies if copy.notice.grant == grant]:
            self._copies.remove(copy)
            self._refuse(copy.notice.push_id, reason)

    def close(self) -> None:
        super().close()
        self._copies.clear()
        self._stopping.clear()
        for fd in self._passed:
            os.close(fd)
        self._passed.clear()
        if self._peer_pool is not None:
            self._peer_pool.close()
            self._peer_pool = None

    def _greet(self, hello: Hello) -> None:
        super()._greet(hello)
        if self._plane.pool.fd is not None:
            self._to_pass = [self._plane.pool.fd]

    def _welcome(self) -> None:
        if not self._passed:
            raise ConnectionLost("it did not pass its pool", "memory")
        self._peer_pool = _PeerPool(self._passed[0], self._plane.pool.block_bytes)

    def _transmit(self, piece: memoryview) -> int:
        if not self._to_pass:
            return self.sock.send(piece)
        sent = socket.send_fds(self.sock, [piece], self._to_pass)
        self._to_pass = []
        return sent

    def _receive(self, size: int) -> bytes:
        if self.is_open:
            return self.sock.recv(size)
        data, fds, _, _ = socket.recv_fds(self.sock, size, 1, socket.MSG_CMSG_CLOEXEC)
        self._passed += fds
        if len(self._passed) > 1:
            raise ConnectionLost("it passed more than its pool", "memory")
        return data

    def _carry(self, push: OutgoingPush) -> Item:
        if push.is_live:
            push.has_begun = True
            blocks = [block.block for block in push.blocks]
            yield from self._frame(Notice(push.push_id, push.grant, push.indices, blocks))

    def _give_up(self, push: OutgoingPush, failure: PushFailed) -> None:
        if not push.has_begun:
            self._plane.emit(failure)
            return
        self._stopping.add(push.push_id)
        self._put(self._stop(failure))
        self._at(self._plane.after(STOP_GRACE_S), lambda: self._must_have_stopped(push.push_id))

    def _stop(self, failure: PushFailed) -> Item:
        yield from self._frame(Stop(failure.push_id))
        self._stopping.discard(failure.push_id)
        self._plane.emit(failure)

    def _must_have_stopped(self, push_id: int) -> None:
        if push_id in self._stopping:
            raise ConnectionLost("the peer does not read what is sent to it")

    def _hear_of_blocks(self, message: WireMessage) -> None:
        match message:
            case Notice():
                self._begin(message)
            case Stop(push_id):
                self._drop(push_id)
            case _:
                raise ChannelError("message", f"a {type(message).__name__} over shared memory")

    def _begin(self, notice: Notice) -> None:
        if len(self._copies) >= MAX_COPIES:
            raise ConnectionLost("more pushes at once than are taken", "flood")
        targets = self._claim(notice.push_id, notice.grant, notice.indices)
        if targets is None:
            return
        source = self._peer_pool
        if source is None or len(notice.blocks) != len(targets) or max(notice.blocks) >= source.num_blocks:
            self._plane.count_refusal("block")
            reason = "blocks are missing, or not in the sender's pool"
            self._damage(notice.grant, reason)
            self._refuse(notice.push_id, reason)
            return
        pieces = self._pieces(source, targets, notice.blocks)
        self._copies.append(_Copy(notice, pieces, self._plane.clock.now()))

    def _pieces(self, source: _PeerPool, targets: Sequence[int], blocks: Sequence[int]) -> Iterator[_Piece]:
        pool = self._plane.pool
        for target, block in zip(targets, blocks, strict=True):
            to_address = pool.block_address(target)
            from_address = source.address + block * pool.block_bytes
            for start in range(0, pool.block_bytes, SLICE_BYTES):
                size = min(SLICE_BYTES, pool.block_bytes - start)
                yield _Piece(to_address + start, from_address + start, size)

    def _copy(self) -> None:
        budget = ROUND_BYTES
        while self._copies and budget > 0:
            piece = next(self._copies[0].pieces, None)
            if piece is None:
                self._finish(self._copies[0])
            else:
                ctypes.memmove(piece.target, piece.source, piece.size)
                budget -= piece.size

    def _finish(self, copy: _Copy) -> None:
        """All is copied; believe it if the sender has not taken it back by now."""
        self._read_all()
        if copy in self._copies:
            self._copies.remove(copy)
            self._accept(copy.notice.push_id, copy.notice.grant, copy.notice.indices, copy.began)

    def _read_all(self) -> None:
        try:
            while True:
                self.read()
        except BlockingIOError:
            return

    def _drop(self, push_id: int) -> None:
        for copy in [copy for copy in self._copies if copy.notice.push_id == push_id]:
            self._copies.remove(copy)
            self._plane.grants.give_back(copy.notice.grant, copy.notice.indices)
