"""What `LLM` gives back for a prompt, in the shape that vLLM's users know, and how it grows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from atomesh.frontend.structured_output.answer_end import ends_with_stop_token
from atomesh.frontend.text.text_stream import TextStream
from atomesh.frontend.text.tokenizer import Tokenizer
from atomesh.protocol.generation import FinishReason, GenerationRequest, TokenDelta, TokenLogprobs
from atomesh.protocol.sampling import SamplingParams, SamplingSpec


@dataclass(frozen=True, slots=True)
class Logprob:
    """`rank` is 1 for the likeliest token; `decoded_token` has U+FFFD for bytes that are no character."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer. `token_ids` include the token that stopped it, `text` does not, unless it was asked for.

    `stop_reason` is the stop string or the entry of `stop_token_ids` that ended it, None after an EOS.
    `logprobs[i]` maps token ids to log-probabilities: of `token_ids[i]` first, then of the likeliest.
    With `finish_reason` "error" the engine failed on this prompt: `error` says why, and text and tokens are
    what had come until then. Elsewhere `error` is None.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its answers. `prompt` is None when ids were given; `prompt_logprobs[0]` is always None."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class _Answer:
    """One choice while it grows."""

    stream: TextStream
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None

    def take(self, delta: TokenDelta, sampling: SamplingSpec) -> None:
        piece = self.stream.push(
            delta.token_ids,
            delta.finish_reason is not None,
            ends_with_stop_token=ends_with_stop_token(delta, sampling),
        )
        used = len(delta.token_ids) if piece.stop is None else piece.tokens_used
        self.text.append(piece.text)
        self.token_ids += delta.token_ids[:used]
        self.logprobs += (delta.logprobs or [])[:used]
        if piece.stop is not None:
            self.finish_reason, self.stop_reason = "stop", piece.stop
        elif delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_token_id


class RunningRequest:
    """A request under way: hand it its deltas until it is finished, then take its output."""

    def __init__(
        self, request: GenerationRequest, params: SamplingParams, tokenizer: Tokenizer, prompt: str | None
    ) -> None:
        self.request = request
        self._params = params
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._cached_tokens = 0
        self._answers = [_Answer(self._text_stream()) for _ in range(request.n)]

    @property
    def is_finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self._answers)

    def take(self, delta: TokenDelta) -> None:
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        if delta.cached_tokens is not None:
            self._cached_tokens = delta.cached_tokens
        if delta.finish_reason == "error":
            self._fail(delta)
            return
        answer = self._answers[delta.choice]
        if answer.finish_reason is None:
            answer.take(delta, self.request.sampling)

    def output(self) -> RequestOutput:
        prompt_logprobs = self._prompt_logprobs
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=[self._completion(index, answer) for index, answer in enumerate(self._answers)],
            prompt_logprobs=None if prompt_logprobs is None else self._positions(prompt_logprobs),
            num_cached_tokens=self._cached_tokens,
            finished=self.is_finished,
        )

    def _text_stream(self) -> TextStream:
        return TextStream(
            self._tokenizer,
            stop=self._params.stop_strings,
            include_stop=self._params.include_stop_str_in_output,
            skip_special_tokens=self._params.skip_special_tokens,
            min_tokens=self.request.sampling.min_tokens,
        )

    def _fail(self, delta: TokenDelta) -> None:
        for answer in self._answers:
            if answer.finish_reason is None:
                answer.finish_reason = "error"
                answer.error = delta.error.message if delta.error is not None else "the engine gave no reason"

    def _completion(self, index: int, answer: _Answer) -> CompletionOutput:
        asked = self._params.logprobs is not None
        return CompletionOutput(
            index=index,
            text="".join(answer.text),
            token_ids=answer.token_ids,
            finish_reason=answer.finish_reason or "abort",
            stop_reason=answer.stop_reason,
            logprobs=[self._position(entry) for entry in answer.logprobs] if asked else None,
            cumulative_logprob=sum(entry.logprob for entry in answer.logprobs) if asked else None,
            error=answer.error,
        )

    def _positions(self, entries: Sequence[TokenLogprobs | None]) -> list[dict[int, Logprob] | None]:
        return [None if entry is None else self._position(entry) for entry in entries]

    def _position(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        found = {entry.token_id: self._logprob(entry.token_id, entry.logprob, entry.rank)}
        for rank, (token_id, logprob) in enumerate(entry.top, start=1):
            found.setdefault(token_id, self._logprob(token_id, logprob, rank))
        return found

    def _logprob(self, token_id: int, logprob: float, rank: int) -> Logprob:
        text = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        return Logprob(logprob, rank, text)
