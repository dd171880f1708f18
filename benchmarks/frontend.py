"""What the HTTP face costs a request and a streamed token, in each API and with each thing an answer can be.

Processor time, in this process, from a request's bytes in the HTTP parser to its answer's bytes in the
transport, before a service that has every token at once and hands them on as the mesh does; the transport
keeps nothing. Tokens are bytes, so that no tokenizer is in it; no sockets and no workers either. A token's
cost is that of 500 more of them in an answer, divided. `python benchmarks/frontend.py --help`
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import uvicorn
from machine import describe_machine
from results_page import publish, table
from revision import commit
from uvicorn.server import ServerState

from atomesh.frontend.app import create_app
from atomesh.frontend.http.http_protocol import HttpProtocol
from atomesh.frontend.reasoning.dialects import find_reasoning_dialect
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.token_service import Carried, Carry
from atomesh.protocol.generation import FinishReason, GenerationRequest, TokenDelta, TokenLogprobs
from atomesh.protocol.worker import LoadReport, ModelDescription
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate

OWNER = "benchmarks/frontend.py"
LIMIT_US = 30.0  # of processor time a streamed token
MORE_TOKENS = 500
WARM_UP = 100
LETTER = 97
PLAIN, THINKING = "m", "thinking"  # models
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "'
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}
TOOL = {"name": "look", "input_schema": PARAMETERS}
CHAT = {"messages": [{"role": "user", "content": "Say a. " * 9}]}


@dataclass(frozen=True, slots=True)
class Shape:
    """`begins` is what an answer begins with, before the letters that are counted."""

    name: str
    path: str
    body: Mapping[str, Any]
    begins: str = ""
    limit_name: str = "max_tokens"
    model: str = PLAIN

    def wire(self, num_letters: int, *, is_streamed: bool) -> bytes:
        tokens = len(self.begins) + num_letters
        asked = {"model": self.model, **self.body, self.limit_name: tokens, "stream": is_streamed}
        if not is_streamed:
            asked.pop("stream_options", None)
        body = json.dumps(asked).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


CHATS, MESSAGES = "/v1/chat/completions", "/v1/messages"
SHAPES = (
    Shape("completions", "/v1/completions", {"prompt": list(range(32, 96))}),
    Shape("chat", CHATS, CHAT),
    Shape("chat, logprobs of 5", CHATS, {**CHAT, "logprobs": True, "top_logprobs": 5}),
    Shape("chat, a stop string", CHATS, {**CHAT, "stop": ["never"]}),
    Shape("chat, usage on each chunk", CHATS, {**CHAT, "stream_options": {"continuous_usage_stats": True}}),
    Shape("chat with tools, text", CHATS, {**CHAT, "tools": [FUNCTION]}),
    Shape("chat with tools, a call", CHATS, {**CHAT, "tools": [FUNCTION]}, begins=CALL),
    Shape("chat, reasoning", CHATS, CHAT, begins="<think>", model=THINKING),
    Shape("chat after reasoning", CHATS, CHAT, begins="<think>b</think>", model=THINKING),
    Shape("responses", "/v1/responses", {"input": "Say a.", "store": False}, "", "max_output_tokens"),
    Shape("messages", MESSAGES, CHAT),
    Shape("messages, a call", MESSAGES, {**CHAT, "tools": [TOOL]}, CALL),
)


@dataclass(slots=True)
class ReadyTokens:
    """Implements TokenService: what the answer begins with, then a letter a step, as many as asked for."""

    begins: bytes = b""

    def describe(self) -> ModelDescription:
        return ModelDescription(
            name="m",
            path="",
            architecture="none",
            dtype="float32",
            vocab_size=259,
            max_model_len=4096,
            eos_token_ids=(),
            block_size=16,
            num_blocks=256,
        )

    def load(self) -> LoadReport:
        return LoadReport()

    def loads(self) -> dict[str, LoadReport]:
        return {}

    async def generate(
        self, request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        last, untold = request.sampling.max_tokens - 1, list[TokenDelta]()
        for place in range(last + 1):
            deltas = [self._delta(request, place, "length" if place == last else None)]
            if 0 < place < last and carry is not None and carry.take(deltas) is Carried.YES:
                untold += deltas
            else:
                yield untold + deltas
                untold = []

    def _delta(self, request: GenerationRequest, place: int, reason: FinishReason | None) -> TokenDelta:
        token_id = self.begins[place] if place < len(self.begins) else LETTER
        wanted = request.sampling.logprobs
        told = None
        if wanted is not None:
            told = [TokenLogprobs(token_id, -0.5, 1, [(LETTER + other, -0.5) for other in range(wanted)])]
        return TokenDelta(
            request_id=request.request_id, token_ids=[token_id], logprobs=told, finish_reason=reason
        )


class Sink:
    """As much of a transport as the server asks for; `ended` is set with each answer's last bytes."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.num_bytes = 0
        self.end = b"}"
        self.first = self.last = b""

    def write(self, data: bytes) -> None:
        self.first = self.first or data
        self.num_bytes += len(data)
        self.last = data
        if data.endswith(self.end):
            self.ended.set()

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, *_: Any) -> None: ...


@dataclass(slots=True)
class Found:
    """Microseconds of processor time: of a request of one token, whole and streamed, and of a further one."""

    request_us: float
    stream_us: float
    token_us: float


class Face:
    def __init__(self) -> None:
        self.service = ReadyTokens()
        tokenizer: Any = ByteTokenizer()
        template: Any = PlainChatTemplate()
        thinking = find_reasoning_dialect((), "think")
        models = [
            ServedModel(PLAIN, tokenizer, template, self.service, created=0),
            ServedModel(THINKING, tokenizer, template, self.service, created=0, reasoning_dialect=thinking),
        ]
        config = uvicorn.Config(create_app(lambda: models), http=HttpProtocol, log_config=None)
        config.load()
        self._sink = Sink()
        self._protocol = HttpProtocol(config, ServerState(), {})
        self._protocol.connection_made(cast("asyncio.Transport", self._sink))

    async def measure(self, shape: Shape, requests: int) -> Found:
        self.service.begins = shape.begins.encode()
        one = await self._cost(shape, requests, 1, is_streamed=False)
        first = await self._cost(shape, requests, 1, is_streamed=True)
        many = await self._cost(shape, max(1, requests // 20), 1 + MORE_TOKENS, is_streamed=True)
        return Found(one, first, (many - first) / MORE_TOKENS)

    async def _cost(self, shape: Shape, requests: int, letters: int, *, is_streamed: bool) -> float:
        """Microseconds a request: the median. Raises RuntimeError when it is refused."""
        wire = shape.wire(letters, is_streamed=is_streamed)
        self._sink.first = b""
        self._sink.end = b"0\r\n\r\n" if is_streamed else b"}"
        taken, warm_up = [], min(WARM_UP, requests)
        for _ in range(requests + warm_up):
            self._sink.ended.clear()
            began = time.process_time()
            self._protocol.data_received(wire)
            try:
                await asyncio.wait_for(self._sink.ended.wait(), 10.0)
            except TimeoutError:
                raise RuntimeError(f"{shape.name}: no answer but {self._sink.last[:300]!r}") from None
            taken.append((time.process_time() - began) * 1e6)
            if b" 200 " not in self._sink.first[:20]:
                raise RuntimeError(f"{shape.name}: it was refused: {self._sink.last[:300]!r}")
            await asyncio.sleep(0)
        return sorted(taken[warm_up:])[requests // 2]


@dataclass(slots=True)
class Report:
    found: dict[str, Found] = field(default_factory=dict)

    @property
    def dearest_us(self) -> float:
        return max(one.token_us for one in self.found.values())

    def as_markdown(self) -> str:
        rows = [
            [name, f"{one.request_us:.0f}", f"{one.stream_us:.0f}", f"{one.token_us:.1f}"]
            for name, one in self.found.items()
        ]
        header = ("answer", "a request of one token, µs", "streamed, µs", "a further streamed token, µs")
        within = "within" if self.dearest_us <= LIMIT_US else "beyond"
        return (
            "## The HTTP face: CPU of a request and of a streamed token\n\n"
            f"{describe_machine()}, commit {commit()}. Processor time of this process from a request's bytes "
            "in the HTTP parser to its answer's in the transport, before a service that has every token at "
            "once. Tokens are bytes and a chat's prompt is its messages' text: no tokenizer and no template, "
            f"nor sockets and workers.\n\n{table(header, rows)}\n\nThe dearest token takes "
            f"{self.dearest_us:.1f} µs, {within} the limit of {LIMIT_US:.0f} µs."
        )


async def measure(requests: int, shapes: Sequence[Shape]) -> Report:
    face, report = Face(), Report()
    for shape in shapes:
        report.found[shape.name] = await face.measure(shape, requests)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=400, help="of each kind (default: 400)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the result into this page")
    options = parser.parse_args()
    report = asyncio.run(measure(options.requests, SHAPES))
    document = {
        name: {"request_us": one.request_us, "stream_us": one.stream_us, "token_us": one.token_us}
        for name, one in report.found.items()
    }
    publish(options, OWNER, report.as_markdown(), {"frontend": document})
    if report.dearest_us > LIMIT_US:
        sys.exit(f"{OWNER}: a streamed token takes {report.dearest_us:.1f} µs; the limit is {LIMIT_US:.0f}")


if __name__ == "__main__":
    main()
