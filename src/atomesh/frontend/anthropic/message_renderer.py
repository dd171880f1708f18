"""Messages as JSON, whole and as named events."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atomesh.errors import AtomeshError
from atomesh.frontend.answer.answer_parser import AnswerParser, PlainAnswer
from atomesh.frontend.answer.parts import Part
from atomesh.frontend.anthropic.events import event_frame
from atomesh.frontend.anthropic.message_head import MessageHead, message_usage
from atomesh.frontend.anthropic.messages_request import MessagesRequest
from atomesh.frontend.anthropic.streamed_blocks import StreamedBlocks
from atomesh.frontend.anthropic.thinking import is_shown
from atomesh.frontend.anthropic.whole_blocks import whole_blocks
from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces
from atomesh.frontend.http.error_answers import anthropic_error_frame
from atomesh.frontend.openai.renderer import WholeChoice


class MessageRenderer:
    """Of the one choice there is."""

    ending = event_frame({"type": "message_stop"})

    def __init__(
        self,
        request: MessagesRequest,
        head: MessageHead,
        generation: Generation,
        parser: AnswerParser,
        request_id: str,
    ) -> None:
        """`request_id` goes with a failure."""
        self._head = head
        self._generation = generation
        self._parser = parser
        self._is_plain = isinstance(parser, PlainAnswer)
        self._request_id = request_id
        self._stop_sequences = frozenset(request.stop_sequences or ())
        self._shows_thinking = is_shown(request.thinking)
        self._blocks = StreamedBlocks(shows_thinking=self._shows_thinking)
        self._end: dict[str, Any] = {}

    def frames(self, step: StepPieces) -> bytes:
        return b"".join([self._frames(piece) for piece in step.pieces])

    def last_frames(self, extra: Mapping[str, Any]) -> bytes:
        return event_frame({"type": "message_delta", "delta": self._end, "usage": self._usage(), **extra})

    def failure(self, error: AtomeshError) -> bytes:
        return anthropic_error_frame(error, self._request_id)

    def whole(self, choices: Sequence[Sequence[WholeChoice]]) -> dict[str, Any]:
        choice = choices[0][0]
        content = whole_blocks(self._parts(choice), shows_thinking=self._shows_thinking)
        end = self._ended(choice.finish_reason, choice.stop_reason)
        return self._head.message(content, self._usage()) | end

    def _frames(self, piece: ChoicePiece) -> bytes:
        is_final = piece.finish_reason is not None
        if self._is_plain and not is_final and not piece.is_first:
            return self._blocks.text(piece.text)
        parts = self._parser.feed(piece.text, len(piece.token_ids), is_final=is_final)
        frames = self._start() if piece.is_first else b""
        frames += self._blocks.frames(parts)
        if is_final:
            self._end = self._ended(piece.finish_reason, piece.stop_reason)
            frames += self._blocks.stop()
        return frames

    def _start(self) -> bytes:
        return event_frame({"type": "message_start", "message": self._head.message([], self._usage())})

    def _parts(self, choice: WholeChoice) -> Iterator[Part]:
        for text, num_tokens in zip(choice.texts, choice.sizes, strict=True):
            yield from self._parser.feed(text, num_tokens, is_final=False)
        yield from self._parser.feed("", 0, is_final=True)

    def _usage(self) -> dict[str, Any]:
        return message_usage(self._generation, self._parser.reasoning_tokens)

    def _ended(self, finish_reason: str | None, stop_reason: str | int | None) -> dict[str, Any]:
        """Why: a sequence of the client's, the model's own end, or the limit."""
        if isinstance(stop_reason, str) and stop_reason in self._stop_sequences:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
        if finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        reason = "tool_use" if self._parser.has_called else "end_turn"
        return {"stop_reason": reason, "stop_sequence": None}
