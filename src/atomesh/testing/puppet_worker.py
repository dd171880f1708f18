"""A worker without an engine: it records what gateways ask of it, and says what the test wants said."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from atomesh.protocol.address import UnixAddress, parse_address
from atomesh.protocol.frames import (
    Abort,
    GatewayMessage,
    Heartbeat,
    Hello,
    StepFrame,
    Submit,
    WorkerMessage,
    encode_message,
)
from atomesh.protocol.generation import TokenDelta, WireError
from atomesh.protocol.kv_events import RequestKVSnapshot
from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.sealed_channel import NONCE_BYTES, ChannelError
from atomesh.protocol.token_channel import TokenChannel, worker_channel
from atomesh.protocol.worker import LoadReport, ModelDescription, Role, WorkerDescription

VOCAB_SIZE = 1000
HEARTBEAT_S = 0.05
PATIENCE_S = 10.0

MODEL = ModelDescription(
    name="scripted",
    path="",
    architecture="scripted",
    dtype="float32",
    vocab_size=VOCAB_SIZE,
    max_model_len=512,
    eos_token_ids=(),
    block_size=16,
    num_blocks=64,
)
LAYOUT = KVLayout(
    name="plain",
    model="scripted",
    weights="w",
    dtype="float32",
    block_size=16,
    num_layers=1,
    num_kv_heads=1,
    head_dim=8,
    block_bytes=1024,
)


class PuppetWorker:
    """`asked` holds every message, in order, but what every gateway says at a hello: that it wants to know of
    KV blocks. `hellos` counts connections."""

    def __init__(self, role: Role, secret: bytes, layout: KVLayout = LAYOUT) -> None:
        self.description = WorkerDescription(
            worker_id=f"{role}-0",
            incarnation=secrets.token_hex(8),
            pid=0,
            role=role,
            model=MODEL,
            kv_address=f"unix:/{role}.kv",
            kv_layout=layout,
            takes_faults=True,
        )
        self.asked: list[GatewayMessage] = []
        self.hellos = 0
        self._awake = asyncio.Event()
        self._awake.set()
        self.load = LoadReport(free_blocks=64, total_blocks=64)
        self._secret = secret
        self._writers: dict[asyncio.StreamWriter, TokenChannel[GatewayMessage]] = {}

    @property
    def is_silent(self) -> bool:
        """As if frozen: whatever is sent is lost, and who calls is not answered until it wakes."""
        return not self._awake.is_set()

    @is_silent.setter
    def is_silent(self, is_silent: bool) -> None:
        if is_silent:
            self._awake.clear()
        else:
            self._awake.set()

    @property
    def submits(self) -> list[Submit]:
        return [message for message in self.asked if isinstance(message, Submit)]

    @property
    def aborts(self) -> list[str]:
        return [message.request_id for message in self.asked if isinstance(message, Abort)]

    async def until(self, condition: "Callable[[PuppetWorker], object]") -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self):  # noqa: ASYNC110  the test waits for what it cannot be told of
                await asyncio.sleep(0.002)

    async def submitted(self, number: int = 1) -> Submit:
        """The request with this number, once it is there."""
        await self.until(lambda puppet: len(puppet.submits) >= number)
        return self.submits[number - 1]

    def say(self, submit: Submit, *token_ids: int, finish: Any = None, **fields: Any) -> None:
        """One step that brings `token_ids` for choice 0; `fields` are TokenDelta's."""
        delta = TokenDelta(
            request_id=submit.request.request_id, token_ids=list(token_ids), finish_reason=finish, **fields
        )
        self.send(StepFrame([delta], self.load))

    def fail(self, submit: Submit, kind: str, message: str = "as the test wants it") -> None:
        """`kind` is a class of atomesh.errors."""
        self.say(submit, finish="error", error=WireError(kind, message))

    def send(self, message: WorkerMessage) -> None:
        """To every gateway; nothing comes while silent."""
        for writer, channel in () if self.is_silent else tuple(self._writers.items()):
            writer.write(channel.seal(encode_message(message)))

    def hang_up(self) -> None:
        for writer in tuple(self._writers):
            writer.close()

    def reincarnate(self) -> None:
        """What the next hello names is another worker."""
        self.description = replace(self.description, incarnation=secrets.token_hex(8))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._awake.wait()
        channel = worker_channel(self._secret, secrets.token_bytes(NONCE_BYTES))
        writer.write(channel.greeting)
        try:
            while data := await reader.read(65536):
                messages = channel.receive(data)
                if channel.is_proved and writer not in self._writers:
                    self._introduce(writer, channel)
                self.asked += [one for one in messages if not isinstance(one, RequestKVSnapshot)]
        except (ConnectionError, ChannelError):
            return
        finally:
            self._writers.pop(writer, None)
            writer.close()

    async def beat(self) -> None:
        while True:
            self.send(Heartbeat(self.load))
            await asyncio.sleep(HEARTBEAT_S)

    def _introduce(self, writer: asyncio.StreamWriter, channel: TokenChannel[GatewayMessage]) -> None:
        writer.write(channel.proof() + channel.seal(encode_message(Hello(self.description))))
        self.hellos += 1
        self._writers[writer] = channel


@asynccontextmanager
async def serving(puppet: PuppetWorker, address: str) -> AsyncIterator[PuppetWorker]:
    """The puppet listens at a Unix address while the block runs; then it is gone, with its connections."""
    parsed = parse_address(address)
    if not isinstance(parsed, UnixAddress):
        raise TypeError("a puppet listens at a Unix address")
    server = await asyncio.start_unix_server(puppet.serve, parsed.path)
    beating = asyncio.create_task(puppet.beat())
    try:
        yield puppet
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        server.close()
        puppet.hang_up()
        await server.wait_closed()
