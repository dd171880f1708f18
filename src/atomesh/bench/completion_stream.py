"""What one streamed completion of an OpenAI-compatible server brought, and when; sans-IO.

Times are seconds on the caller's monotonic clock. Servers differ in what a chunk means: some send the role
ahead of the first token, some end with a chunk that carries only the finish reason, some put usage on every
chunk. An *output chunk* is one that brought tokens: where usage comes with every chunk, one whose
completion_tokens grew; elsewhere, one that carries text, reasoning or a tool call, or an empty text that is
neither the role's nor the end's (a token whose bytes are held back).
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from atomesh.bench.failures import RequestFailed
from atomesh.bench.sse import ServerEvent

DONE = "[DONE]"
FAILED_FINISHES = frozenset({"error", "abort"})


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Delta(msgspec.Struct, frozen=True):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        return self.text or (self.delta.content if self.delta else None) or ""

    @property
    def reasoning(self) -> str:
        delta = self.delta or Delta()
        return delta.reasoning or delta.reasoning_content or ""

    @property
    def has_output(self) -> bool:
        if self.content or self.reasoning:
            return True
        if self.delta is None:
            return self.text == "" and self.finish_reason is None
        if self.delta.tool_calls:
            return True
        return self.delta.content == "" and self.delta.role is None and self.finish_reason is None


class Chunk(msgspec.Struct, frozen=True):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event added to the answer."""

    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class OutputChunk:
    at_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished stream. `last_s` is when the last output or the finish reason came, whichever was later.

    `prompt_tokens` is None where the server gave no usage; `output_tokens` is then the number of output
    chunks.
    """

    chunks: tuple[OutputChunk, ...]
    first_s: float
    last_s: float
    finish_reason: str
    prompt_tokens: int | None
    output_tokens: int
    counted_by_usage: bool


class CompletionStream:
    """Feed it every event of the answer.

    It raises RequestFailed on an error frame and on what is not a completion.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._chunks: list[OutputChunk] = []
        self._last_s: float | None = None
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._usage_is_continuous: bool | None = None

    def observe(self, event: ServerEvent, now: float) -> Piece:
        if event.data == DONE:
            self.is_done = True
            return Piece()
        chunk = _decode(event)
        if chunk.choices:
            self._observe_choices(chunk, now)
        self._usage = chunk.usage or self._usage
        return Piece(
            text="".join(choice.content for choice in chunk.choices),
            reasoning="".join(choice.reasoning for choice in chunk.choices),
        )

    def result(self) -> Completion:
        """The whole, once the stream has ended. Raises RequestFailed unless it ended as a success must."""
        if not self.is_done:
            raise RequestFailed("cut stream", f"the stream ended without {DONE}")
        if self._finish_reason is None or self._last_s is None:
            raise RequestFailed("no finish reason", "the stream ended without a finish reason")
        if self._finish_reason in FAILED_FINISHES:
            raise RequestFailed(f"finish reason {self._finish_reason}", "the server gave the answer up")
        return self._completion(self._finish_reason, self._last_s)

    def so_far(self) -> Completion | None:
        """What came of a stream that was stopped; None before its first token."""
        return self._completion("stopped", self._chunks[-1].at_s) if self._chunks else None

    def _completion(self, finish_reason: str, last_s: float) -> Completion:
        counted = sum(chunk.tokens for chunk in self._chunks)
        told = self._usage.completion_tokens if self._usage else 0
        return Completion(
            chunks=tuple(self._chunks),
            first_s=self._chunks[0].at_s if self._chunks else last_s,
            last_s=last_s,
            finish_reason=finish_reason,
            prompt_tokens=self._usage.prompt_tokens if self._usage else None,
            output_tokens=told or counted,
            counted_by_usage=self._usage is not None and (told > 0 or counted == 0),
        )

    def _observe_choices(self, chunk: Chunk, now: float) -> None:
        if self._usage_is_continuous is None:
            self._usage_is_continuous = chunk.usage is not None
        tokens = self._new_tokens(chunk)
        if tokens:
            self._chunks.append(OutputChunk(now, tokens))
        reasons = [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        if reasons:
            self._finish_reason = reasons[-1]
        if tokens or reasons:
            self._last_s = now

    def _new_tokens(self, chunk: Chunk) -> int:
        if self._usage_is_continuous and chunk.usage is not None:
            before = self._usage.completion_tokens if self._usage else 0
            return max(chunk.usage.completion_tokens - before, 0)
        return 1 if any(choice.has_output for choice in chunk.choices) else 0


_decoder = msgspec.json.Decoder(Chunk)


def _decode(event: ServerEvent) -> Chunk:
    try:
        chunk = _decoder.decode(event.data)
    except msgspec.DecodeError as error:
        if event.name == "error":
            raise RequestFailed("error frame", event.data[:500]) from error
        raise RequestFailed("malformed chunk", str(error)) from error
    if chunk.error is not None or event.name == "error":
        raise _failure_of(chunk.error)
    return chunk


def _failure_of(error: Any) -> RequestFailed:
    if not isinstance(error, dict):
        return RequestFailed("error frame", str(error or "no message"))
    code = error.get("code")
    kind = "error frame" if code is None else f"error frame {code}"
    param = error.get("param")
    return RequestFailed(
        kind,
        str(error.get("message", "")),
        status=code if isinstance(code, int) else None,
        param=param if isinstance(param, str) else None,
    )
