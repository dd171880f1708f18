"""Completions as JSON, whole and in chunks; a choice's index counts through all prompts of the call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atomesh.errors import AtomeshError
from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces
from atomesh.frontend.http.error_answers import error_frame
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.http.sse import DONE
from atomesh.frontend.logprobs import (
    CompletionLogprobs,
    CompletionLogprobsWriter,
    prompt_logprobs,
    token_names,
)
from atomesh.frontend.openai.answer_head import AnswerHead, ChunkWriter, total_usage
from atomesh.frontend.openai.completion_request import CompletionRequest
from atomesh.frontend.openai.renderer import WholeChoice
from atomesh.frontend.openai.sampling_fields import make_chunk_writer
from atomesh.frontend.text.tokenizer import Tokenizer
from atomesh.protocol.generation import TokenLogprobs


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """One prompt's generation, with the prompt's text where it is echoed."""

    generation: Generation
    echo: str | None


class CompletionRenderer:
    ending = DONE

    def __init__(
        self,
        request: CompletionRequest,
        head: AnswerHead,
        answers: Sequence[PromptAnswer],
        tokenizer: Tokenizer,
    ) -> None:
        self._head = head
        self._answers = answers
        self._tokenizer = tokenizer
        self._n = answers[0].generation.request.n
        self._wants_logprobs = request.logprobs is not None
        self._wants_ids = bool(request.return_token_ids)
        self._wants_prompt_logprobs = request.prompt_logprobs is not None
        self._says_every_token = self._wants_logprobs or self._wants_ids
        self._generations = [answer.generation for answer in answers]
        self._chunks: ChunkWriter = make_chunk_writer(request, head, self._generations)
        self._echoed: dict[int, CompletionLogprobs] = {}  # by prompt: its part is the same in each choice
        names = token_names(tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        skip = request.skip_special_tokens is not False
        self._logprob_writers = [
            CompletionLogprobsWriter(tokenizer, names, request.logprobs or 0, skip_special_tokens=skip)
            for _ in range(len(answers) * self._n)
        ]

    def failure(self, error: AtomeshError) -> bytes:
        return error_frame(error)

    def frames(self, step: StepPieces) -> bytes:
        return b"".join(
            [self._frame(step.prompt, piece) for piece in step.pieces if self._says_something(piece)]
        )

    def last_frames(self, extra: Mapping[str, Any]) -> bytes:
        return self._chunks.last_frame(extra)

    def _says_something(self, piece: ChoicePiece) -> bool:
        return bool(piece.text or piece.is_first or piece.finish_reason or self._says_every_token)

    def _frame(self, prompt: int, piece: ChoicePiece) -> bytes:
        echo = self._answers[prompt].echo if piece.is_first else None
        index = prompt * self._n + piece.choice
        choice: dict[str, Any] = {
            "index": index,
            "text": piece.text if echo is None else echo + piece.text,
            "logprobs": self._logprobs(index, piece.logprobs, echo),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if self._wants_ids:
            choice["token_ids"] = piece.token_ids
            if piece.is_first:
                choice["prompt_token_ids"] = self._generations[prompt].request.prompt_token_ids
        return self._chunks.frame(encode_json(choice))

    def whole(self, choices: Sequence[Sequence[WholeChoice]]) -> dict[str, Any]:
        body = self._head.fields()
        body["choices"] = [
            choice for prompt, row in enumerate(choices) for choice in self._whole_choices(prompt, row)
        ]
        body["usage"] = total_usage(self._generations)
        return body

    def _whole_choices(self, prompt: int, row: Sequence[WholeChoice]) -> list[dict[str, Any]]:
        choices = [self._whole_choice(prompt, index, choice) for index, choice in enumerate(row)]
        if self._wants_prompt_logprobs:
            entries = self._generations[prompt].prompt_logprobs or []
            ranked = prompt_logprobs(self._tokenizer, entries)  # one for all: they are many
            for choice in choices:
                choice["prompt_logprobs"] = ranked
        return choices

    def _whole_choice(self, prompt: int, place: int, choice: WholeChoice) -> dict[str, Any]:
        generation, echo = self._generations[prompt], self._answers[prompt].echo
        index = prompt * self._n + place
        body: dict[str, Any] = {
            "index": index,
            "text": choice.text if echo is None else echo + choice.text,
            "logprobs": self._logprobs(index, choice.logprobs, echo),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._wants_ids:
            body["token_ids"] = choice.token_ids
            body["prompt_token_ids"] = generation.request.prompt_token_ids
        return body

    def _logprobs(
        self, index: int, entries: Sequence[TokenLogprobs], echo: str | None
    ) -> CompletionLogprobs | None:
        if not self._wants_logprobs:
            return None
        writer = self._logprob_writers[index]
        if echo is None:
            return writer.answer(entries)
        prompt = index // self._n
        if prompt in self._echoed:
            writer.skip_prompt(echo)
        else:
            generation = self._generations[prompt]
            self._echoed[prompt] = writer.prompt(
                echo, generation.request.prompt_token_ids, generation.prompt_logprobs or []
            )
        return self._echoed[prompt].joined(writer.answer(entries))
