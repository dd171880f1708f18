"""From one prompt's token deltas to pieces of text: stop strings, the start of the answer, what it cost.

What is made for every token is a msgspec Struct, which is made sooner than a frozen dataclass.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import msgspec

from atomesh.errors import AtomeshError, EngineError
from atomesh.frontend.structured_output.answer_end import ends_with_stop_token
from atomesh.frontend.text.text_stream import TextStream
from atomesh.frontend.text.tokenizer import Tokenizer
from atomesh.frontend.token_service import Carried, Carry, TokenService
from atomesh.protocol.generation import (
    GenerationRequest,
    ServingPath,
    Timings,
    TokenDelta,
    TokenLogprobs,
    WireError,
)
from atomesh.protocol.wire_errors import to_exception


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How an answer's tokens become its text."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    shown_special: frozenset[int] = frozenset()  # text even so: what an answer is parsed by


class ChoicePiece(msgspec.Struct, frozen=True):
    """What one step brought for one choice; without `text` while a character or stop string is incomplete."""

    choice: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    is_first: bool
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class _OpenChoice:
    stream: TextStream
    is_first: bool = True
    is_open: bool = True


class Delivery(Protocol):
    """Takes a step's pieces to the client the moment they arrive."""

    @property
    def is_free(self) -> bool:
        """Whether it can be done now, without waiting, and nothing older is still on its way."""
        ...

    def deliver(self, step: "StepPieces") -> None:
        """While it is free."""
        ...


class Generation:
    """One request on its way: `steps()` is read once; the other attributes say what is known so far."""

    def __init__(
        self,
        request: GenerationRequest,
        options: TextOptions,
        tokenizer: Tokenizer,
        service: TokenService,
        prompt: int = 0,
    ) -> None:
        """`prompt` is its place in the call's list."""
        self.request = request
        self._prompt = prompt
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.finish_reasons: dict[int, str] = {}
        self.timings: Timings | None = None
        self.serving_path: ServingPath | None = None
        self._service = service
        self._open = request.n
        self._num_carried = 0  # deltas that the client has and `steps` has not seen
        self._fault: Exception | None = None  # of what was to take them there
        self._choices = [
            _OpenChoice(
                TextStream(
                    tokenizer,
                    stop=options.stop,
                    include_stop=options.include_stop,
                    skip_special_tokens=options.skip_special_tokens,
                    min_tokens=options.min_tokens,
                    shown_special=options.shown_special,
                )
            )
            for _ in range(request.n)
        ]

    async def steps(self, delivery: Delivery | None = None) -> AsyncGenerator["StepPieces", None]:
        """Pieces by step until every choice has finished; then, or when closed, the request is over.

        Those that `delivery` has taken do not come here. Raises the AtomeshError that ended the request.
        """
        carry = None if delivery is None else Carry(partial(self._carry, delivery), _ignore)
        async with aclosing(self._service.generate(self.request, carry)) as steps:
            async for deltas in steps:
                if self._fault is not None:
                    raise self._fault
                news = self._without_carried(deltas)
                for delta in news:
                    self._note_start(delta)
                pieces = [self._piece(delta) for delta in news if self._says_something(delta)]
                if pieces:
                    yield StepPieces(self._prompt, pieces)
                if self._open == 0:
                    return
        raise EngineError("the engine ended the request before its answer was complete; try again")

    def _carry(self, delivery: Delivery, deltas: Sequence[TokenDelta]) -> Carried:
        choices = self._choices
        if not delivery.is_free:
            return Carried.NO
        for delta in deltas:
            if not (0 <= delta.choice < len(choices) and choices[delta.choice].is_open):
                return Carried.NO
        self._num_carried += len(deltas)
        try:  # several may be of one choice, which a stop string ends
            pieces = [self._piece(delta) for delta in deltas if choices[delta.choice].is_open]
            delivery.deliver(StepPieces(self._prompt, pieces))
        except Exception as error:  # noqa: BLE001  it ends this request, and not the worker's connection
            self._fault = error
            return Carried.LAST
        return Carried.YES if self._open else Carried.LAST

    def _without_carried(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        if not self._num_carried:
            return deltas
        news = deltas[self._num_carried :]
        self._num_carried -= len(deltas) - len(news)
        return news

    def _note_start(self, delta: TokenDelta) -> None:
        if delta.error is not None or delta.finish_reason in ("error", "abort"):
            raise _to_error(delta.error)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.cached_tokens is not None:
            self.cached_tokens = delta.cached_tokens
        if delta.timings is not None:
            self.timings = delta.timings
        if delta.serving_path is not None:
            self.serving_path = delta.serving_path
        elif self.serving_path is None:
            self.serving_path = "unified"

    def _says_something(self, delta: TokenDelta) -> bool:
        return self._choices[delta.choice].is_open and bool(delta.token_ids or delta.finish_reason)

    def _piece(self, delta: TokenDelta) -> ChoicePiece:
        choice = self._choices[delta.choice]
        token_ids = delta.token_ids
        is_final = delta.finish_reason is not None
        is_stopped = delta.finish_reason == "stop"
        is_marked = is_stopped and ends_with_stop_token(delta, self.request.sampling)
        piece = choice.stream.push(token_ids, is_final, ends_with_stop_token=is_marked)
        logprobs = delta.logprobs or []
        finish_reason: Literal["stop", "length"] | None = None
        stop_reason: str | int | None = None
        if piece.stop is not None:
            token_ids, logprobs = token_ids[: piece.tokens_used], logprobs[: piece.tokens_used]
            finish_reason, stop_reason = "stop", piece.stop
        elif is_final:
            finish_reason = "stop" if is_stopped else "length"
            stop_reason = delta.stop_token_id
        self.completion_tokens += len(token_ids)
        is_first, choice.is_first = choice.is_first, False
        if finish_reason is not None:
            choice.is_open = False
            self.finish_reasons[delta.choice] = finish_reason
            self._open -= 1
        return ChoicePiece(
            delta.choice, piece.text, token_ids, logprobs, is_first, finish_reason, stop_reason
        )


class StepPieces(msgspec.Struct, frozen=True):
    """What one step brought for the prompt at `prompt` in the call's list."""

    prompt: int
    pieces: list[ChoicePiece]


def merge(streams: Sequence[AsyncGenerator[StepPieces, None]]) -> AsyncGenerator[StepPieces, None]:
    """All streams at once, in order of arrival; the first failure, or closing the merge, ends the others."""
    return streams[0] if len(streams) == 1 else _merge(streams)


async def _merge(streams: Sequence[AsyncGenerator[StepPieces, None]]) -> AsyncGenerator[StepPieces, None]:
    arrivals: asyncio.Queue[StepPieces | None] = asyncio.Queue()
    readers = [asyncio.ensure_future(_read(stream, arrivals)) for stream in streams]
    try:
        still_open = len(readers)
        while still_open:
            arrival = await arrivals.get()
            if arrival is not None:
                yield arrival
                continue
            still_open -= 1
            _raise_first_failure(readers)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(stream: AsyncGenerator[StepPieces, None], arrivals: asyncio.Queue[StepPieces | None]) -> None:
    async with aclosing(stream):
        try:
            async for step in stream:
                arrivals.put_nowait(step)
        finally:
            asyncio.get_running_loop().call_soon(arrivals.put_nowait, None)


def _raise_first_failure(readers: Sequence[asyncio.Future[None]]) -> None:
    for reader in readers:
        if reader.done() and not reader.cancelled() and (error := reader.exception()) is not None:
            raise error


def _ignore(_deltas: Sequence[TokenDelta]) -> None:
    """Each piece was counted when it was made."""


def _to_error(error: WireError | None) -> AtomeshError:
    if error is None:
        return EngineError("the engine aborted the request; try again")
    return to_exception(error)
