"""The gateway's end of a token-plane connection: proves the secret, then sorts step frames by request."""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, cast

from atomesh.errors import AtomeshError
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.protocol.frames import (
    Abort,
    GatewayMessage,
    Heartbeat,
    Hello,
    Inspect,
    Inspected,
    Profile,
    RoleSet,
    StepFrame,
    StopProfile,
    Submit,
    WorkerMessage,
    encode_message,
)
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, PrefillLeg, TokenDelta
from atomesh.protocol.kv_events import KVSnapshot
from atomesh.protocol.sealed_channel import NONCE_BYTES, ChannelError
from atomesh.protocol.token_channel import gateway_channel

if TYPE_CHECKING:
    from atomesh.protocol.worker import WorkerDescription

News = StepFrame | Heartbeat | KVSnapshot | RoleSet


class HungUpError(ConnectionResetError):
    """The worker has closed the connection before its hello, as it does to whom it does not trust."""


class WorkerConnection(asyncio.Protocol):
    """`hello` gives the worker once it has proved itself; `closed` is done when the connection is no more.

    A fault of the peer closes the connection; it is in `fault` then, and `hello` raises it, or HungUpError.
    """

    def __init__(self, secret: bytes, on_news: Callable[[News], None], on_lost: Callable[[], None]) -> None:
        """`on_news` is called before the tokens that came with the news are handed out, `on_lost` before any
        request hears that the worker is gone."""
        loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[WorkerDescription] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.fault: ChannelError | None = None
        self._on_news = on_news
        self._on_lost = on_lost
        self._channel = gateway_channel(secret, secrets.token_bytes(NONCE_BYTES))
        self._streams: dict[str, RequestStream] = {}
        self._query_ids = count(1)
        self._queries: dict[int, asyncio.Future[Inspected | Profile]] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._channel.greeting)

    def data_received(self, data: bytes) -> None:
        try:
            was_keyed = self._channel.is_keyed
            messages = self._channel.receive(data)
            if self._channel.is_keyed and not was_keyed:
                self._write(self._channel.proof())
            for message in messages:
                self._hear(message)
        except ChannelError as error:
            self._fail_hello(error)
            self.fault = error
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail_hello(HungUpError("it hung up before its hello; has it the same secret?"))
        self._on_lost()
        for stream in self._streams.values():
            stream.fail(WorkerLostError())
        self._streams.clear()
        for query in self._queries.values():
            if not query.done():
                query.set_exception(WorkerLostError())
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        """Drop the connection; the worker aborts what it still computes for it."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, message: GatewayMessage) -> None:
        """To a worker that has said hello."""
        self._write(self._channel.seal(encode_message(message)))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def submit(self, request: GenerationRequest, leg: Leg | None) -> RequestStream:
        """Its request id must be new on this connection."""
        request_id = request.request_id
        stream = RequestStream(
            len(leg.outputs) if isinstance(leg, DecodeLeg) else request.n,
            lambda shall_abort: self._leave(request_id, shall_abort),
            is_first_token_all=isinstance(leg, PrefillLeg),
        )
        if self.closed.done():
            stream.fail(WorkerLostError())
            return stream
        self.send(Submit(request, leg))  # may refuse what is too long, and then nothing is left here
        self._streams[request_id] = stream
        return stream

    async def inspect(self) -> Inspected:
        """Who owns the worker's KV blocks. Raises WorkerLostError when the connection breaks before."""
        answer = await self._ask(Inspect(next(self._query_ids)))
        if not isinstance(answer, Inspected):
            raise ChannelError("message", "an answer to another question than the one about its blocks")
        return answer

    async def stop_profile(self) -> Profile:
        """What the worker has noted of its steps. Raises WorkerLostError as `inspect` does."""
        answer = await self._ask(StopProfile(next(self._query_ids)))
        if not isinstance(answer, Profile):
            raise ChannelError("message", "an answer to another question than the one about its steps")
        return answer

    async def _ask(self, question: Inspect | StopProfile) -> Inspected | Profile:
        query: asyncio.Future[Inspected | Profile] = asyncio.get_running_loop().create_future()
        self._queries[question.query_id] = query
        try:
            self.send(question)
            return await query
        finally:
            del self._queries[question.query_id]

    def fail_all(self, error: AtomeshError) -> None:
        """End every running request with `error`, here and at the worker."""
        for request_id, stream in tuple(self._streams.items()):
            if not stream.is_over:
                self.send(Abort(request_id))
                stream.fail(error)

    def _hear(self, message: WorkerMessage) -> None:
        match message:
            case StepFrame(deltas) if self.hello.done():
                self._on_news(message)
                self._sort(deltas)
            case Heartbeat() | KVSnapshot() | RoleSet() if self.hello.done():
                self._on_news(message)
            case Inspected(query_id) | Profile(query_id) if self.hello.done():
                self._answer(query_id, message)
            case Hello(worker) if not self.hello.done():
                self.hello.set_result(worker)
            case _:
                raise ChannelError("message", f"a {type(message).__name__} out of turn")

    def _answer(self, query_id: int, answer: Inspected | Profile) -> None:
        query = self._queries.get(query_id)
        if query is not None and not query.done():
            query.set_result(answer)

    def _leave(self, request_id: str, shall_abort: bool) -> None:
        self._streams.pop(request_id, None)
        if shall_abort:
            self.send(Abort(request_id))

    def _sort(self, deltas: list[TokenDelta]) -> None:
        by_request: defaultdict[str, list[TokenDelta]] = defaultdict(list)
        for delta in deltas:
            by_request[delta.request_id].append(delta)
        for request_id, own in by_request.items():
            stream = self._streams.get(request_id)
            if stream is not None and not stream.push(own):
                self.send(Abort(request_id))

    def _fail_hello(self, error: Exception) -> None:
        if not self.hello.done():
            self.hello.set_exception(error)
            self.hello.exception()  # whoever waits hears of it; nobody may wait
