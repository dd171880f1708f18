"""Blocks over a stream: a frame, the blocks' bytes straight from and into the pools, and their checksums.

The MACs of the frames keep strangers out; the checksums (xxh3) find what the way has damaged.
"""

import socket
from typing import TYPE_CHECKING

import xxhash

from atomesh.kv_transfer.channel import ChannelError, Side
from atomesh.kv_transfer.connection import ROUND_BYTES, Connection, ConnectionLost, Keeper, OutgoingPush
from atomesh.kv_transfer.landing import Landing
from atomesh.kv_transfer.pace import Pace, num_unsent
from atomesh.kv_transfer.plane import Plane
from atomesh.kv_transfer.transport import Arriving
from atomesh.kv_transfer.wire import Payload, PayloadEnd, WireMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atomesh.kv_transfer.outbox import Item
    from atomesh.kv_transfer.transport import PushFailed

PIECE_BYTES = 2**19  # hashed, and then copied to the kernel out of the processor's cache
WAKE_BYTES = 2**19  # of a payload are worth a wake-up; woken for every few, both ends get half as far
ZEROS = memoryview(bytes(PIECE_BYTES))


class TcpConnection(Connection):
    def __init__(self, plane: Plane, keeper: Keeper, sock: socket.socket, side: Side, peer: str) -> None:
        super().__init__(plane, keeper, sock, side, peer)
        self._going: OutgoingPush | None = None
        self._coming: Payload | None = None
        self._coming_since = 0.0
        self._landing = Landing(0, ())
        self._wake_bytes = 1
        self._num_sent = 0
        self._pace = Pace(plane.clock.now())

    def divert(self, grant: bytes, reason: str) -> None:
        if self._coming is not None and self._coming.grant == grant and not self._landing.is_diverted:
            self._landing.divert()
            self._pace.num_bytes = 0
            self._refuse(self._coming.push_id, reason)

    def read(self) -> None:
        if self._landing.is_complete:
            super().read()
            return
        try:
            self._read_payload(ROUND_BYTES)
        finally:
            self._await_payload()
            if self._pace.is_steady(self._plane.clock.now()) and self._coming is not None:
                self._plane.emit(Arriving(self._coming.grant))

    def _next_message(self) -> WireMessage | None:
        """What was read together with a frame may be the beginning of a payload."""
        while not self._landing.is_complete:
            space = self._landing.space
            raw = self._channel.take_raw(len(space))
            if not raw:
                return None
            space[: len(raw)] = raw
            self._landing.took(len(raw))
            self._await_payload()
        return super()._next_message()

    def _read_payload(self, budget: int) -> None:
        while budget > 0 and not self._landing.is_complete:
            count = self.sock.recv_into(self._landing.space)
            if count == 0:
                raise ConnectionLost("the peer has closed the connection within a block")
            self._landing.took(count)
            self._pace.num_bytes += 0 if self._landing.is_diverted else count
            budget -= count

    def _await_payload(self) -> None:
        """Have the kernel wake us for many bytes of a payload at once, but for each of anything else."""
        wanted = max(1, min(WAKE_BYTES, self._landing.left))
        if wanted != self._wake_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._wake_bytes = wanted

    def _transmit(self, piece: memoryview) -> int:
        count = super()._transmit(piece)
        self._num_sent += count
        return count

    def _num_through(self) -> int:
        """What the kernel has taken, but for what still waits there."""
        return self._num_sent - num_unsent(self.sock)

    def _carry(self, push: OutgoingPush) -> "Item":
        if not push.is_live:
            return
        push.has_begun = True
        yield from self._frame(Payload(push.push_id, push.grant, push.indices))
        self._going = push
        digests: list[int] = []
        for block in push.blocks:
            yield from self._block(push, block.block, digests)
        self._going = None
        yield from self._frame(PayloadEnd(push.push_id, digests if push.is_live else None))

    def _block(self, push: OutgoingPush, number: int, digests: list[int]) -> "Iterator[memoryview]":
        content = self._plane.pool.block(number)
        digest = xxhash.xxh3_64()
        for start in range(0, len(content), PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            if push.is_live:
                digest.update(piece)
                yield _flipped(piece) if self._plane.faults.fires("kv_flip_bit") else piece
            else:
                yield ZEROS[: len(piece)]
        digests.append(digest.intdigest())

    def _end(self, push_id: int) -> OutgoingPush | None:
        push = super()._end(push_id)
        if push is not None and push is self._going:
            self._outbox.blank(ZEROS)
        return push

    def _give_up(self, push: OutgoingPush, failure: "PushFailed") -> None:
        self._plane.emit(failure)

    def _hear_of_blocks(self, message: WireMessage) -> None:
        match message:
            case Payload() if self._coming is None:
                self._begin(message)
            case PayloadEnd() if self._coming is not None and self._coming.push_id == message.push_id:
                self._finish(self._coming, message)
            case _:
                raise ChannelError("message", f"a {type(message).__name__} out of turn")

    def _hear(self, message: WireMessage) -> None:
        if self._coming is not None and not isinstance(message, PayloadEnd):
            raise ChannelError("message", f"a {type(message).__name__} within a payload")
        super()._hear(message)

    def _begin(self, payload: Payload) -> None:
        pool = self._plane.pool
        if len(payload.indices) > pool.num_blocks:
            raise ChannelError("size", f"{len(payload.indices)} blocks for a pool of {pool.num_blocks}")
        targets = self._claim(payload.push_id, payload.grant, payload.indices) or ()
        size = len(payload.indices) * pool.block_bytes
        self._coming, self._coming_since = payload, self._plane.clock.now()
        self._pace = Pace(self._coming_since)
        self._landing = Landing(size, [pool.block(number) for number in targets])
        self._await_payload()

    def _finish(self, payload: Payload, end: PayloadEnd) -> None:
        landing, self._coming = self._landing, None
        if landing.is_diverted:
            return
        if end.digests is None:
            self._plane.grants.give_back(payload.grant, payload.indices)
        elif end.digests == landing.digests:
            self._accept(payload.push_id, payload.grant, payload.indices, self._coming_since)
        else:
            self._plane.count_refusal("checksum")
            reason = "a block's checksum is wrong"
            self._damage(payload.grant, reason)
            self._refuse(payload.push_id, reason)


def _flipped(piece: memoryview) -> memoryview:
    damaged = bytearray(piece)
    damaged[len(damaged) // 2] ^= 1
    return memoryview(damaged)
