"""vLLM's completions in token ids: what we ask, and what its answers mean. Pure.

Source: vLLM 0.32, `vllm/entrypoints/openai/completion/protocol.py`. Token ids come with `return_token_ids`,
in logprobs as `token_id:N` with `return_tokens_as_token_ids`.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from atomesh.errors import EngineError
from atomesh.mesh.backends.foreign_errors import to_error_in_stream
from atomesh.mesh.backends.foreign_grammars import check_continues, vllm_outputs
from atomesh.mesh.backends.foreign_json import UnreadableError, decode_json
from atomesh.mesh.backends.token_biases import token_biases
from atomesh.protocol.generation import FinishReason, GenerationRequest, Timings, TokenDelta, TokenLogprobs

_FINISHED: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "repetition": "stop"}
_TOKEN = "token_id:"  # noqa: S105  what vLLM calls a token without its text
MAX_SALT_LENGTH = 128
_NOT_IN_SALTS = frozenset("@/\\\0")
_DIGESTED = "blake2b:"


class _Ranked(msgspec.Struct, frozen=True):
    logprob: float
    rank: int | None = None


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, _Ranked] | None] | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens_details: _PromptDetails | None = None


class _Times(msgspec.Struct, frozen=True):
    """The first token's time is counted from the end of the queue."""

    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """A chunk of a stream, or a whole answer."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: _Times | None = None


_decoder = msgspec.json.Decoder(Answer)


def whole_body(request: GenerationRequest, model: str) -> dict[str, Any]:
    """Of a request for one server alone, unless it is for the prompt's logprobs streamed.

    vLLM computes no prompt without a token after it: see `AnswerReader` for a request that wants none.
    Raises InvalidRequestError for what vLLM has no field for.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.prompt_token_ids,
        "n": request.n,
        "max_tokens": max(sampling.max_tokens, 1),
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "ignore_eos": not sampling.eos_token_ids,
        "stop_token_ids": list(sampling.stop_token_ids),
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": sampling.prompt_logprobs is None,
        **_constraints(request),
    }
    if sampling.prompt_logprobs is None:
        body["stream_options"] = {"include_usage": True}
    else:
        body["prompt_logprobs"] = sampling.prompt_logprobs
    if sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
    if request.cache_salt:
        body["cache_salt"] = vllm_salt(request.cache_salt)
    return body


def vllm_salt(salt: str) -> str:
    """As it is where vLLM takes it, which it does to 128 characters and without a few; else its digest.

    What looks like a digest is digested too, so that no two salts become one.
    """
    is_taken = len(salt) <= MAX_SALT_LENGTH and _NOT_IN_SALTS.isdisjoint(salt)
    if is_taken and not salt.startswith(_DIGESTED):
        return salt
    return _DIGESTED + blake2b(salt.encode(), digest_size=32).hexdigest()


def prefill_body(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Of the leg that computes the KV and samples one token, which nobody will see."""
    dropped = ("stream_options", "logprobs")
    return {
        **{name: value for name, value in whole.items() if name not in dropped},
        "n": 1,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "min_tokens": 1,
        "stream": False,
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }


def unseen(request: GenerationRequest) -> GenerationRequest:
    """What `prefill_body` asks, in our words."""
    return replace(request, n=1, sampling=replace(request.sampling, logprobs=None))


def continued(request: GenerationRequest, choice: int, tokens: list[int]) -> GenerationRequest:
    """What is missing of one choice, from its tokens on; vLLM adds a choice's index to the seed.

    Raises EngineError for an answer that a grammar binds: it would begin anew.
    """
    sampling = request.sampling
    check_continues(sampling, len(tokens))
    return replace(
        request,
        prompt_token_ids=request.prompt_token_ids + tokens,
        n=1,
        sampling=replace(
            sampling,
            seed=sampling.seed + choice if sampling.seed < 2**63 - 1 - choice else sampling.seed,
            max_tokens=sampling.max_tokens - len(tokens),
            min_tokens=max(sampling.min_tokens - len(tokens), 0),
            prompt_logprobs=None,
        ),
    )


def _constraints(request: GenerationRequest) -> dict[str, Any]:
    sampling = request.sampling
    biases = token_biases(sampling)
    found: dict[str, Any] = {"logit_bias": biases} if biases else {}
    found |= vllm_outputs(sampling)
    if sampling.allowed_token_ids:
        found["allowed_token_ids"] = list(sampling.allowed_token_ids)
    if sampling.reasoning is not None and sampling.reasoning.max_tokens is not None:
        found["thinking_token_budget"] = sampling.reasoning.max_tokens
    return found


def as_transfer(deltas: list[TokenDelta]) -> list[TokenDelta]:
    """Of a leg that waited for KV where it would have waited for its turn."""
    return [
        delta if delta.timings is None else replace(delta, timings=Timings(0.0, 0.0, delta.timings.queue_s))
        for delta in deltas
    ]


class AnswerReader:
    """One answer's chunks → deltas. The last one waits for the usage, which knows the cached tokens.

    Of a request for no token at all the one that vLLM makes is left out.
    """

    def __init__(self, request: GenerationRequest, choice: int | None = None) -> None:
        """`choice` is the one that all of it belongs to, where it is not `index`."""
        self._request = request
        self._choice = choice
        self._open = request.n
        self._cached_tokens: int | None = None
        self._timings: Timings | None = None
        self._held: list[TokenDelta] = []

    def read(self, data: bytes) -> list[TokenDelta]:
        """Raises what an error in the stream stands for, EngineError for what is no answer."""
        answer = decode_answer(data)
        if answer.usage is not None and answer.usage.prompt_tokens_details is not None:
            self._cached_tokens = answer.usage.prompt_tokens_details.cached_tokens
        if answer.metrics is not None:
            self._timings = _timings(answer.metrics)
        deltas = [self._delta(choice) for choice in answer.choices if _says_something(choice)]
        self._open -= sum(delta.finish_reason is not None for delta in deltas)
        if self._open > 0 or not deltas:
            return deltas
        self._held = deltas
        return []

    def end(self) -> list[TokenDelta]:
        """What was held back for the usage."""
        held, self._held = self._held, []
        if held:
            held[0] = replace(held[0], cached_tokens=self._cached_tokens, timings=self._timings)
        return held

    def _delta(self, choice: _Choice) -> TokenDelta:
        if self._request.sampling.max_tokens == 0:
            choice = _without_its_token(choice)
        token_ids = choice.token_ids or []
        finish = None if choice.finish_reason is None else _FINISHED.get(choice.finish_reason)
        if choice.finish_reason is not None and finish is None:
            raise EngineError(f"the engine ended the answer with {choice.finish_reason[:50]!r}; try again")
        wants = self._request.sampling.logprobs if token_ids else None
        return TokenDelta(
            request_id=self._request.request_id,
            choice=choice.index if self._choice is None else self._choice,
            token_ids=token_ids,
            logprobs=None if wants is None else _logprobs(token_ids, choice.logprobs, wants),
            prompt_logprobs=_prompt_logprobs(self._request, choice),
            finish_reason=finish,
            stop_token_id=choice.stop_reason if isinstance(choice.stop_reason, int) else None,
        )


def decode_answer(data: bytes) -> Answer:
    """Raises EngineError for what is no answer of vLLM's, and what an error in it stands for."""
    try:
        answer = decode_json(data, _decoder)
    except UnreadableError:
        raise EngineError("the engine's answer is not what vLLM sends; is it another server?") from None
    if answer.error is not None:
        raise to_error_in_stream(answer.error)
    return answer


def _timings(told: _Times) -> Timings | None:
    if told.queue_time_ms is None or told.time_to_first_token_ms is None:
        return None
    return Timings(told.queue_time_ms / 1000, told.time_to_first_token_ms / 1000)


def _without_its_token(choice: _Choice) -> _Choice:
    finish = None if choice.finish_reason is None else "length"
    return replace(choice, token_ids=None, logprobs=None, finish_reason=finish, stop_reason=None)


def _says_something(choice: _Choice) -> bool:
    return bool(choice.token_ids) or choice.finish_reason is not None


def _logprobs(token_ids: list[int], told: _Logprobs | None, wants: int) -> list[TokenLogprobs]:
    if told is None or len(told.token_logprobs) != len(token_ids):
        raise EngineError("the engine's logprobs do not fit its tokens; ask without logprobs")
    tops = told.top_logprobs or [None] * len(token_ids)
    return [
        _one_logprob(token_id, logprob, top or {}, wants)
        for token_id, logprob, top in zip(token_ids, told.token_logprobs, tops, strict=True)
    ]


def _one_logprob(token_id: int, logprob: float | None, top: Mapping[str, float], wants: int) -> TokenLogprobs:
    """vLLM does not tell the rank: it is one more than there are likelier tokens in what it tells."""
    best = sorted(((_id_of(name), value) for name, value in top.items()), key=lambda pair: -pair[1])
    own = 0.0 if logprob is None else logprob
    rank = 1 + sum(value > own for other, value in best if other != token_id)
    return TokenLogprobs(token_id, own, rank, best[:wants])


def _id_of(name: str) -> int:
    if not name.startswith(_TOKEN) or not name[len(_TOKEN) :].isdecimal():
        raise EngineError("the engine names tokens by their text in logprobs; update it")
    return int(name[len(_TOKEN) :])


def _prompt_logprobs(request: GenerationRequest, choice: _Choice) -> list[TokenLogprobs | None] | None:
    told, wants = choice.prompt_logprobs, request.sampling.prompt_logprobs
    if told is None or wants is None:
        return None
    return [
        None if entry is None else _one_prompt_logprob(token_id, entry, wants)
        for token_id, entry in zip(request.prompt_token_ids, told, strict=True)
    ]


def _one_prompt_logprob(token_id: int, entry: Mapping[str, _Ranked], wants: int) -> TokenLogprobs:
    own = entry[str(token_id)]
    best = sorted(((int(name), one.logprob) for name, one in entry.items()), key=lambda pair: -pair[1])
    return TokenLogprobs(token_id, own.logprob, own.rank or 1, best[:wants])
