"""A double of a foreign engine's prefix cache that publishes its events over ZeroMQ, as vLLM 0.32 does.

Its hashes are chained digests of another kind than ours. With `is_sglang` it names things as SGLang does.
"""

import asyncio
import hashlib
import socket
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from atomesh.mesh.backends.event_source import EventSource
from atomesh.protocol.vllm_kv_events import END_OF_REPLAY, SEQUENCE_BYTES


class ForeignKVCache:
    """An async context manager that listens at `source`; without `replays` nobody answers there.

    `serve` is what the engine does with a prompt. While it `is_mute`, batches are kept for replay alone.
    """

    def __init__(
        self, block_size: int = 16, *, is_sglang: bool = False, replays: bool = True, is_sure: bool = True
    ) -> None:
        """`is_sure`: the operator's word is given for what SGLang does not say."""
        self.is_mute = False
        self._block_size = block_size
        self._is_sglang = is_sglang
        self._replays = replays
        self._is_sure = is_sure
        self._held: OrderedDict[int, None] = OrderedDict()
        self._kept: list[tuple[int, bytes]] = []
        self._sequence = 0
        self._time = 0.0
        self._ports = _free_port(), _free_port()

    @property
    def source(self) -> EventSource:
        events, replay = (f"tcp://127.0.0.1:{port}" for port in self._ports)
        return EventSource(
            events, replay if self._replays else None, is_unsalted=self._is_sglang and self._is_sure
        )

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.bind(f"tcp://127.0.0.1:{self._ports[0]}")
        router = self._context.socket(zmq.ROUTER)
        router.bind(f"tcp://127.0.0.1:{self._ports[1]}")
        self._answering = asyncio.create_task(self._answer(router))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._answering.cancel()
        await asyncio.gather(self._answering, return_exceptions=True)
        self._context.destroy(linger=0)

    async def until_subscribed(self) -> None:
        """A gateway hears what is said from now on."""
        await self._socket.recv()

    def hit(self, tokens: Sequence[int], salt: str = "") -> int:
        """Of the prompt's tokens, those that are cached."""
        hashes = self._chain(tokens, salt)
        held = next((n for n, one in enumerate(hashes) if one not in self._held), len(hashes))
        return held * self._block_size

    async def serve(self, tokens: Sequence[int], salt: str = "") -> None:
        """The prompt's full blocks are cached from now on."""
        size, hashes, begin = self._block_size, self._chain(tokens, salt), self.hit(tokens, salt)
        new = hashes[begin // size :]
        if new:
            self._held.update(dict.fromkeys(new))
            parent = hashes[begin // size - 1] if begin else None
            await self.publish(self._stored(new, parent, tokens[begin : len(hashes) * size], salt))

    async def keep(self, tokens: Sequence[int]) -> None:
        """As `serve`, before anybody could listen."""
        self.is_mute = True
        await self.serve(tokens)
        self.is_mute = False

    async def evict(self, tokens: Sequence[int], num_blocks: int, salt: str = "") -> None:
        """The last so many of the prompt's blocks."""
        gone = self._chain(tokens, salt)[-num_blocks:]
        for one in gone:
            del self._held[one]
        await self.publish({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})

    async def clear(self) -> None:
        self._held.clear()
        await self.publish({"type": "AllBlocksCleared"})

    def restart(self) -> None:
        """Another life: nothing held, nothing to replay, counting from 0."""
        self._held.clear()
        self._kept.clear()
        self._sequence = 0

    async def publish(self, *events: dict[str, Any]) -> None:
        self._time += 1.0
        payload = msgspec.msgpack.encode([self._time, events, 0])
        number = self._sequence.to_bytes(SEQUENCE_BYTES, "big")
        self._sequence += 1
        self._kept.append((self._sequence - 1, payload))
        if not self.is_mute:
            await self._socket.send_multipart([b"", number, payload])

    def _chain(self, tokens: Sequence[int], salt: str) -> list[int]:
        size, parent, hashes = self._block_size, salt.encode(), []
        for start in range(0, len(tokens) - size + 1, size):
            parent = hashlib.sha256(parent + repr(list(tokens[start : start + size])).encode()).digest()
            hashes.append(int.from_bytes(parent[:8], "big", signed=self._is_sglang))
        return hashes

    def _stored(
        self, hashes: list[int], parent: int | None, tokens: Sequence[int], salt: str
    ) -> dict[str, Any]:
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": list(tokens),
            "block_size": self._block_size,
            "lora_id": None,
            "medium": "GPU",
        }
        if self._is_sglang:
            return event | ({"cache_salt": salt} if salt else {})
        first = [salt] if salt and parent is None else None
        keys = [first, *(None for _ in hashes[1:])]
        return event | {"lora_name": None, "extra_keys": keys, "group_idx": 0, "session_id": "s"}

    async def _answer(self, router: "zmq.asyncio.Socket") -> None:
        while True:
            peer, empty, first = await router.recv_multipart()
            for sequence, payload in list(self._kept):
                if sequence >= int.from_bytes(first, "big"):
                    number = sequence.to_bytes(SEQUENCE_BYTES, "big")
                    await router.send_multipart([peer, empty, *self._topic, number, payload])
            await router.send_multipart([peer, empty, *self._topic, END_OF_REPLAY, b""])

    @property
    def _topic(self) -> list[bytes]:
        """Said in a replay by vLLM alone."""
        return [] if self._is_sglang else [b""]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
