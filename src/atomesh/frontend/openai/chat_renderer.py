"""Chat answers as JSON, whole and in chunks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atomesh.errors import AtomeshError
from atomesh.frontend.answer.answer_parser import AnswerParser, PlainAnswer
from atomesh.frontend.answer.parts import (
    ContentDelta,
    Part,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from atomesh.frontend.answer.whole_answer import WholeAnswer, parse_whole
from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces
from atomesh.frontend.http.error_answers import error_frame
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.http.sse import DONE
from atomesh.frontend.logprobs import chat_logprobs, prompt_logprobs, token_names
from atomesh.frontend.openai.answer_head import AnswerHead, ChunkWriter
from atomesh.frontend.openai.chat_request import ChatRequest
from atomesh.frontend.openai.renderer import WholeChoice
from atomesh.frontend.openai.sampling_fields import make_chunk_writer
from atomesh.frontend.text.tokenizer import Tokenizer
from atomesh.protocol.generation import TokenLogprobs

# What nearly every chunk is: some text of a choice, and nothing else.
_PLAIN = b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'


class ChatRenderer:
    ending = DONE

    def __init__(
        self,
        request: ChatRequest,
        head: AnswerHead,
        generation: Generation,
        tokenizer: Tokenizer,
        make_parser: Callable[[], AnswerParser] = PlainAnswer,
    ) -> None:
        self._head = head
        self._generation = generation
        self._tokenizer = tokenizer
        self._parsers = [make_parser() for _ in range(generation.request.n)]
        self._is_plain = make_parser is PlainAnswer
        self._names = token_names(tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        self._wants_logprobs = bool(request.logprobs)
        self._wants_ids = bool(request.return_token_ids)
        self._wants_prompt_logprobs = request.prompt_logprobs is not None
        self._chunks: ChunkWriter = make_chunk_writer(request, head, [generation], self._count_reasoning)
        self._says_every_token = self._wants_logprobs or self._wants_ids

    def frames(self, step: StepPieces) -> bytes:
        return b"".join([self._frames(piece) for piece in step.pieces])

    def last_frames(self, extra: Mapping[str, Any]) -> bytes:
        return self._chunks.last_frame(extra)

    def failure(self, error: AtomeshError) -> bytes:
        return error_frame(error)

    def _frames(self, piece: ChoicePiece) -> bytes:
        is_rich = piece.is_first or piece.finish_reason is not None or self._says_every_token
        if self._is_plain and not is_rich:
            if not piece.text:
                return b""
            return self._chunks.frame(_PLAIN % (piece.choice, encode_json(piece.text)))
        is_final = piece.finish_reason is not None
        parts = self._parsers[piece.choice].feed(piece.text, len(piece.token_ids), is_final=is_final)
        deltas = [_delta(part) for part in parts]
        if is_rich:
            return self._rich_frames(piece, deltas or [{"content": ""}])
        return b"".join([self._chunks.frame(encode_json(_bare(piece.choice, delta))) for delta in deltas])

    def _rich_frames(self, piece: ChoicePiece, deltas: Sequence[dict[str, Any]]) -> bytes:
        """The first chunk has the role and the log-probabilities, the last one why the choice has ended."""
        chunks = [_bare(piece.choice, delta) for delta in deltas]
        first, last = chunks[0], chunks[-1]
        if piece.is_first:
            first["delta"] = {"role": "assistant", **deltas[0]}
        first["logprobs"] = self._logprobs(piece.logprobs)
        if piece.finish_reason is not None:
            last["finish_reason"] = self._finish_reason(piece.choice, piece.finish_reason)
            last["stop_reason"] = piece.stop_reason
        extra = None
        if self._wants_ids:
            first["token_ids"] = piece.token_ids
            if piece.is_first:
                extra = {"prompt_token_ids": self._generation.request.prompt_token_ids}
        head = self._chunks.frame(encode_json(first), extra)
        return head + b"".join([self._chunks.frame(encode_json(chunk)) for chunk in chunks[1:]])

    def _finish_reason(self, choice: int, reason: str | None) -> str | None:
        return "tool_calls" if reason == "stop" and self._parsers[choice].has_called else reason

    def whole(self, choices: Sequence[Sequence[WholeChoice]]) -> dict[str, Any]:
        body = self._head.fields()
        body["choices"] = [self._whole_choice(index, choice) for index, choice in enumerate(choices[0])]
        body["usage"] = self._chunks.usage()
        if self._wants_ids:
            body["prompt_token_ids"] = self._generation.request.prompt_token_ids
        if self._wants_prompt_logprobs:
            body["prompt_logprobs"] = prompt_logprobs(self._tokenizer, self._generation.prompt_logprobs or [])
        return body

    def _whole_choice(self, index: int, choice: WholeChoice) -> dict[str, Any]:
        answer = parse_whole(self._parsers[index], zip(choice.texts, choice.sizes, strict=True))
        body: dict[str, Any] = {
            "index": index,
            "message": _message(answer),
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": self._finish_reason(index, choice.finish_reason),
            "stop_reason": choice.stop_reason,
        }
        if self._wants_ids:
            body["token_ids"] = choice.token_ids
        return body

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(self._tokenizer, self._names, entries) if self._wants_logprobs else None

    def _count_reasoning(self) -> int:
        return sum(parser.reasoning_tokens for parser in self._parsers)


def _bare(choice: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}


def _delta(part: Part) -> dict[str, Any]:
    match part:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning": text, "reasoning_content": text}
        case ToolCallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case ToolArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _message(answer: WholeAnswer) -> dict[str, Any]:
    """Content is null where there are calls and nothing else; reasoning is left out where there is none."""
    content = answer.content or (None if answer.calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message |= {"reasoning": answer.reasoning, "reasoning_content": answer.reasoning}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message
