"""A response as it is answered: its events while it streams, its whole object, and how it ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

from atomesh.errors import AtomeshError
from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.answer.parts import ContentDelta, Part
from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces
from atomesh.frontend.http.error_shapes import openai_shape
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.logprobs import chat_logprobs, token_names
from atomesh.frontend.openai.generation_factory import mint_id
from atomesh.frontend.openai.renderer import WholeChoice
from atomesh.frontend.openai.responses.output_writer import Event, ItemStatus, OutputWriter
from atomesh.frontend.openai.responses.response_body import Body, Status, response_error, usage
from atomesh.frontend.text.tokenizer import Tokenizer
from atomesh.protocol.generation import TokenLogprobs

NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request decides how its answer is written; `repeated` is the same in all its states."""

    repeated: Body
    wants_logprobs: bool
    seals_reasoning: bool
    is_stored: bool


class ResponseRenderer:
    ending = b""

    def __init__(
        self,
        asked: Asked,
        generation: Generation,
        tokenizer: Tokenizer,
        make_parser: Callable[[], AnswerParser],
    ) -> None:
        self._asked = asked
        self._generation = generation
        self._tokenizer = tokenizer
        self._names = token_names(tokenizer, as_ids=False)
        self._parser = make_parser()
        self._writer = OutputWriter(mint_id, seals_reasoning=asked.seals_reasoning)
        self._pending_logprobs: list[TokenLogprobs] = []
        self._sequence = 0
        self._status: Status = "in_progress"
        self._is_announced = False
        self._has_begun = False
        self._end: Body = {}

    @property
    def id(self) -> str:
        answer_id: str = self._asked.repeated["id"]
        return answer_id

    @property
    def status(self) -> Status:
        return self._status

    def body(self) -> Body:
        """The response object as it stands."""
        state: Body = {"status": self._status, "output": self._writer.items()}
        if self._status in ("completed", "incomplete"):
            state["usage"] = usage(self._generation, self._parser.reasoning_tokens)
        return self._asked.repeated | state | self._end

    def queued_frames(self) -> bytes:
        """For a response that begins later: it has been taken, and waits."""
        self._status, self._is_announced = "queued", True
        return self._state_frame("response.created") + self._state_frame("response.queued")

    def frames(self, step: StepPieces) -> bytes:
        begun = self._begin()
        events = [event for piece in step.pieces for event in self._read(_said(piece))]
        return begun + b"".join([self._frame(event) for event in events])

    def last_frames(self, extra: Mapping[str, Any]) -> bytes:
        return self._state_frame(f"response.{self._status}", extra)

    def failure(self, error: AtomeshError) -> bytes:
        """A stored response says how it is kept. The error is one to those who read its `type`, and to those
        who read its `error`."""
        told = b""
        if self._asked.is_stored:
            told = self._begin()
            self.fail(error)
            told += self._state_frame("response.failed")
        self.fail(error)
        return told + self.error_frame(error)

    def error_frame(self, error: AtomeshError) -> bytes:
        event = {"type": "error", "code": error.code or error.type, "message": error.message}
        return self._frame({**event, "param": error.param, **openai_shape(error, code=error.status)})

    def fail(self, error: AtomeshError) -> None:
        """It ends here, with what there is."""
        self._writer.close("incomplete")
        self._status, self._end = "failed", {"error": response_error(error)}

    def cancel(self) -> None:
        self._writer.close("incomplete")
        self._status = "cancelled"

    def whole(self, choices: Sequence[Sequence[WholeChoice]]) -> dict[str, Any]:
        [[choice]] = choices
        place = 0
        for text, size in zip(choice.texts, choice.sizes, strict=True):
            self._read(_Said(text, size, choice.logprobs[place : place + size]))
            place += size
        self._read(_Said("", 0, (), choice.finish_reason))
        return self.body()

    def _begin(self) -> bytes:
        """What is told before the first text."""
        if self._has_begun:
            return b""
        self._has_begun, self._status = True, "in_progress"
        created = b"" if self._is_announced else self._state_frame("response.created")
        return created + self._state_frame("response.in_progress")

    def _read(self, said: "_Said") -> list[Event]:
        is_final = said.finish_reason is not None
        parts = self._parser.feed(said.text, said.num_tokens, is_final=is_final)
        logprobs = self._attribute(parts, said.logprobs)
        events: list[Event] = []
        for part in parts:
            if isinstance(part, ContentDelta):
                events += self._writer.add(part, logprobs)
                logprobs = []
            else:
                events += self._writer.add(part)
        return events + self._finish(said.finish_reason) if is_final else events

    def _attribute(self, parts: Sequence[Part], logprobs: Sequence[TokenLogprobs]) -> list[Any]:
        """Those of the tokens that the content among `parts` was made of; held text's wait for it."""
        if not self._asked.wants_logprobs:
            return []
        self._pending_logprobs += logprobs
        if not parts:
            return []
        has_content = any(isinstance(part, ContentDelta) for part in parts)
        taken = self._take_logprobs()
        return taken if has_content else []

    def _take_logprobs(self) -> list[Any]:
        entries, self._pending_logprobs = self._pending_logprobs, []
        content: list[Any] = chat_logprobs(self._tokenizer, self._names, entries)["content"]
        return content

    def _finish(self, reason: str | None) -> list[Event]:
        is_complete = reason == "stop"
        ending: ItemStatus = "completed" if is_complete else "incomplete"
        self._status = "completed" if is_complete else "incomplete"
        self._end = {"completed_at": int(time())}
        if not is_complete:
            self._end = {"incomplete_details": {"reason": "max_output_tokens"}}
        return self._writer.finish(ending, self._take_logprobs())

    def _state_frame(self, kind: str, extra: Mapping[str, Any] = NOTHING) -> bytes:
        return self._frame({"type": kind, "response": self.body(), **extra})

    def _frame(self, event: Event) -> bytes:
        kind: str = event["type"]
        data = encode_json({**event, "sequence_number": self._sequence})
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


@dataclass(frozen=True, slots=True)
class _Said:
    """A piece of the one choice; `finish_reason` is there on the last."""

    text: str
    num_tokens: int
    logprobs: Sequence[TokenLogprobs]
    finish_reason: str | None = None


def _said(piece: ChoicePiece) -> _Said:
    return _Said(piece.text, len(piece.token_ids), piece.logprobs, piece.finish_reason)
