"""What a mock engine says: OpenAI's chat and completions, with vLLM's token ids where asked. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec
from mock_http import STREAM_END, chunk

MODEL = "mock"
MAX_MODEL_LEN = 32_768
BLOCK_SIZE = 32
NUM_BLOCKS = 65_536


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class _Message(msgspec.Struct, frozen=True):
    content: str = ""


class Asked(msgspec.Struct, frozen=True):
    """What of a request's body a mock heeds. `prompt` are token ids or text."""

    prompt: list[int] | str = ""
    messages: list[_Message] = []
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool = False
    cache_salt: str = ""

    @property
    def wanted(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 16

    @property
    def text(self) -> str:
        """Of a prompt that did not come as token ids."""
        said = [message.content for message in self.messages]
        return " ".join(said if self.messages or not isinstance(self.prompt, str) else [self.prompt])

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


asked_decoder = msgspec.json.Decoder(Asked)
_encode = msgspec.json.Encoder().encode
RENDER = "/render"  # of vLLM's render routes, which its router asks before it chooses a worker


def word_ids(text: str) -> list[int]:
    """A token a word, as good as any for what only compares prompts."""
    return [crc32(word.encode()) % 50_000 for word in text.split()]


def rendered(body: bytes) -> bytes:
    """What vLLM's render routes say of a request's prompt."""
    asked = asked_decoder.decode(body)
    return rendered_ids(asked.prompt if isinstance(asked.prompt, list) else word_ids(asked.text))


def rendered_ids(ids: list[int]) -> bytes:
    return _encode({"request_id": "rendered", "token_ids": ids or [0], "model": MODEL, "sampling_params": {}})


class Dialect:
    """The bytes of every chunk, made once. Each answer says the same tokens, from the first on, around."""

    def __init__(
        self, texts: Sequence[str], token_ids: Sequence[int], *, is_chat: bool, has_ids: bool
    ) -> None:
        self._texts, self._token_ids = texts, token_ids
        self._is_chat, self._has_ids = is_chat, has_ids
        size = range(len(texts))
        self._plain = [chunk(_frame(self._body([self._choice(place, None)]))) for place in size]
        self._last = [chunk(_frame(self._body([self._choice(place, "length")]))) for place in size]

    def token(self, number: int, *, is_last: bool) -> bytes:
        """The chunk of the answer's token `number`."""
        chunks = self._last if is_last else self._plain
        return chunks[number % len(chunks)]

    def end(self, asked: Asked, cached: int, prompt: int) -> bytes:
        usage = self._body([], _usage(prompt, asked.wanted, cached))
        data = _frame(usage) if asked.wants_usage else b""
        return chunk(data + b"data: [DONE]\n\n") + STREAM_END

    def whole(self, asked: Asked, cached: int, prompt: int) -> bytes:
        places = [number % len(self._texts) for number in range(asked.wanted)]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        text = "".join(self._texts[place] for place in places)
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if self._has_ids:
            choice["token_ids"] = [self._token_ids[place] for place in places]
        kind = "chat.completion" if self._is_chat else "text_completion"
        return _encode(
            {**self._head(kind), "choices": [choice], "usage": _usage(prompt, asked.wanted, cached)}
        )

    def _choice(self, place: int, finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._is_chat:
            choice["delta"] = {"content": self._texts[place]}
        else:
            choice["text"] = self._texts[place]
        if self._has_ids:
            choice["token_ids"] = [self._token_ids[place]]
        return choice

    def _body(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return _encode({**self._head(kind), "choices": choices} | ({"usage": usage} if usage else {}))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": "cmpl-0123456789abcdef", "object": kind, "created": 1_700_000_000, "model": MODEL}


def _frame(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"


def _usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass(frozen=True, slots=True)
class EngineState:
    """What /metrics says; `kv_usage` is a share."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    block_size: int = BLOCK_SIZE
    num_blocks: int = NUM_BLOCKS


IDLE = EngineState()


def probed(path: str, started_at: float, state: EngineState = IDLE) -> tuple[bytes, str] | None:
    """The answer to what routers ask of an engine beside its work, and its content type; None for no such."""
    if path == "/metrics":
        return _metrics(started_at, state), "text/plain; version=0.0.4"
    document = _PROBED.get(path)
    return None if document is None else (_encode(document), "application/json")


_LISTED = {"id": MODEL, "object": "model", "owned_by": MODEL, "root": MODEL, "max_model_len": MAX_MODEL_LEN}
_INFO = {"model_path": MODEL, "tokenizer_path": MODEL, "served_model_name": MODEL, "is_generation": True}
_PROBED: dict[str, dict[str, Any]] = {
    "/health": {},
    "/v1/models": {"object": "list", "data": [_LISTED]},
    "/get_model_info": _INFO,
    "/model_info": _INFO,
    "/get_server_info": _INFO,
    "/server_info": _INFO,
    "/get_load": {"load": 0},
}


def _metrics(started_at: float, state: EngineState) -> bytes:
    label = f'{{engine="0",model_name="{MODEL}"}}'
    config = f'{{block_size="{state.block_size}",engine="0",num_gpu_blocks="{state.num_blocks}"}}'
    lines = [
        f"process_start_time_seconds {started_at:.2f}",
        f"vllm:num_requests_running{label} {state.running:.1f}",
        f"vllm:num_requests_waiting{label} {state.waiting:.1f}",
        f"vllm:kv_cache_usage_perc{label} {state.kv_usage}",
        f"vllm:cache_config_info{config} 1.0",
    ]
    return ("\n".join(lines) + "\n").encode()
