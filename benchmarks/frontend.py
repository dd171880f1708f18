"""What the HTTP face adds to a request and to a token: `python benchmarks/frontend.py [--json]`.

Processor time, in this process, from a request's bytes in the HTTP parser to its answer's bytes in the
transport, before a service that has every token at once; its transport keeps nothing. Tokens are bytes and
prompts are token ids, so that neither templates nor a tokenizer are in it; no sockets either.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from atomesh.frontend.app import create_app
from atomesh.frontend.http.http_protocol import HttpProtocol
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.token_service import Carried, Carry
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription
from atomesh.testing.byte_tokenizer import ByteTokenizer

PROMPT = list(range(32, 96))
WARM_UP = 100


class ReadyTokens:
    """Implements TokenService: a letter with each step, as many as are asked for."""

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
        last, carried = request.sampling.max_tokens - 1, []
        for number in range(last + 1):
            reason: Any = "length" if number == last else None
            deltas = [TokenDelta(request_id=request.request_id, token_ids=[97], finish_reason=reason)]
            if number and carry and not reason and carry(deltas) is Carried.YES:  # as the mesh does
                carried += deltas
            else:
                yield carried + deltas
                carried = []


class Sink:
    """As much of a transport as the server asks for; `ended` is set with each answer's last bytes."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.num_bytes = 0
        self.end = b"}"

    def write(self, data: bytes) -> None:
        self.num_bytes += len(data)
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


class Face:
    def __init__(self) -> None:
        tokenizer: Any = ByteTokenizer()
        served = ServedModel("m", tokenizer, None, ReadyTokens(), created=0)
        config = uvicorn.Config(create_app(lambda: [served]), http=HttpProtocol, log_config=None)
        config.load()
        self._sink = Sink()
        self._protocol = HttpProtocol(config, ServerState(), {})
        self._protocol.connection_made(cast("asyncio.Transport", self._sink))

    async def cost(self, requests: int, tokens: int, *, is_streamed: bool) -> float:
        """Microseconds a request: the median."""
        body = {"model": "m", "prompt": PROMPT, "max_tokens": tokens, "stream": is_streamed}
        wire = _http(json.dumps(body).encode())
        self._sink.end = b"0\r\n\r\n" if is_streamed else b"}"
        taken = []
        for _ in range(requests + WARM_UP):
            self._sink.ended.clear()
            began = time.thread_time()
            self._protocol.data_received(wire)
            await self._sink.ended.wait()
            taken.append((time.thread_time() - began) * 1e6)
            await asyncio.sleep(0)
        return sorted(taken[WARM_UP:])[requests // 2]


def _http(body: bytes) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def measure(requests: int) -> dict[str, float]:
    face = Face()
    one = await face.cost(requests, 1, is_streamed=False)
    first = await face.cost(requests, 1, is_streamed=True)
    many = await face.cost(max(1, requests // 20), 501, is_streamed=True)
    return {"request_us": one, "stream_us": first, "token_us": (many - first) / 500}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    found = asyncio.run(measure(options.requests))
    if options.json:
        print(json.dumps({"frontend": found}, indent=2))
        return
    print(
        f"a request of 1 token {found['request_us']:.0f} µs, streamed {found['stream_us']:.0f} µs, "
        f"each further streamed token {found['token_us']:.1f} µs of processor time"
    )


if __name__ == "__main__":
    main()
