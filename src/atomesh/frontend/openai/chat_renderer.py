"""Chat answers as JSON, whole and in chunks."""

from collections.abc import Mapping, Sequence
from typing import Any

from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.logprobs import chat_logprobs, prompt_logprobs, token_names
from atomesh.frontend.openai.answer_head import AnswerHead, ChunkWriter, total_usage
from atomesh.frontend.openai.chat_request import ChatRequest
from atomesh.frontend.openai.renderer import WholeChoice
from atomesh.frontend.openai.sampling_fields import make_chunk_writer
from atomesh.frontend.text.tokenizer import Tokenizer
from atomesh.protocol.generation import TokenLogprobs

# What nearly every chunk is: some text of a choice, and nothing else.
_PLAIN = b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'


class ChatRenderer:
    def __init__(
        self, request: ChatRequest, head: AnswerHead, generation: Generation, tokenizer: Tokenizer
    ) -> None:
        self._head = head
        self._generation = generation
        self._tokenizer = tokenizer
        self._names = token_names(tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        self._wants_logprobs = bool(request.logprobs)
        self._wants_ids = bool(request.return_token_ids)
        self._wants_prompt_logprobs = request.prompt_logprobs is not None
        self._chunks: ChunkWriter = make_chunk_writer(request, head, [generation])
        self._says_every_token = self._wants_logprobs or self._wants_ids

    def frames(self, step: StepPieces) -> bytes:
        return b"".join([self._frame(piece) for piece in step.pieces if self._says_something(piece)])

    def last_frames(self, extra: Mapping[str, Any]) -> bytes:
        return self._chunks.last_frame(extra)

    def _says_something(self, piece: ChoicePiece) -> bool:
        return bool(piece.text or piece.is_first or piece.finish_reason or self._says_every_token)

    def _frame(self, piece: ChoicePiece) -> bytes:
        if piece.is_first or piece.finish_reason is not None or self._says_every_token:
            return self._rich_frame(piece)
        return self._chunks.frame(_PLAIN % (piece.choice, encode_json(piece.text)))

    def _rich_frame(self, piece: ChoicePiece) -> bytes:
        delta: dict[str, Any] = {"content": piece.text}
        if piece.is_first:
            delta = {"role": "assistant", "content": piece.text}
        choice = {
            "index": piece.choice,
            "delta": delta,
            "logprobs": self._logprobs(piece.logprobs),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if not self._wants_ids:
            return self._chunks.frame(encode_json(choice))
        choice["token_ids"] = piece.token_ids
        prompt_ids = (
            {"prompt_token_ids": self._generation.request.prompt_token_ids} if piece.is_first else None
        )
        return self._chunks.frame(encode_json(choice), prompt_ids)

    def whole(self, choices: Sequence[Sequence[WholeChoice]]) -> dict[str, Any]:
        body = self._head.fields()
        body["choices"] = [self._whole_choice(index, choice) for index, choice in enumerate(choices[0])]
        body["usage"] = total_usage([self._generation])
        if self._wants_ids:
            body["prompt_token_ids"] = self._generation.request.prompt_token_ids
        if self._wants_prompt_logprobs:
            body["prompt_logprobs"] = prompt_logprobs(self._tokenizer, self._generation.prompt_logprobs or [])
        return body

    def _whole_choice(self, index: int, choice: WholeChoice) -> dict[str, Any]:
        body: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._wants_ids:
            body["token_ids"] = choice.token_ids
        return body

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(self._tokenizer, self._names, entries) if self._wants_logprobs else None
