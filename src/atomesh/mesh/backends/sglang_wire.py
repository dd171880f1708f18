"""SGLang's POST /generate in token ids: what we ask, and what its answers mean. Pure.

Source: SGLang's `GenerateReqInput` and `TokenizerManager`. Output ids and logprobs of a stream come whole
every time, or only what is new, as the server was started; `completion_tokens` tells how many are new.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from atomesh.errors import AtomeshError, EngineError, InvalidRequestError
from atomesh.mesh.backends.foreign_errors import to_error, to_error_in_stream
from atomesh.mesh.backends.foreign_grammars import sglang_outputs
from atomesh.mesh.backends.foreign_json import UnreadableError, decode_json
from atomesh.mesh.backends.token_biases import token_biases
from atomesh.protocol.generation import GenerationRequest, TokenDelta, TokenLogprobs

_Entry = tuple[float | None, int, Any]  # logprob, token id, its text or null


class _Meta(msgspec.Struct, frozen=True):
    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: dict[str, Any] | None = None
    input_token_logprobs: list[_Entry] | None = None
    input_top_logprobs: list[list[_Entry] | None] | None = None
    output_token_logprobs: list[_Entry] | None = None
    output_top_logprobs: list[list[_Entry] | None] | None = None


class Answer(msgspec.Struct, frozen=True):
    output_ids: list[int] = []
    meta_info: _Meta = _Meta()
    index: int = 0
    error: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(Answer | list[Answer])


def generate_body(request: GenerationRequest) -> dict[str, Any]:
    """Raises InvalidRequestError for what SGLang has no field for."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "rid": request.request_id,
        "input_ids": request.prompt_token_ids,
        "stream": sampling.prompt_logprobs is None,
        "sampling_params": {
            "n": request.n,
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "sampling_seed": sampling.seed % 2**31,
            "ignore_eos": not sampling.eos_token_ids,
            "stop_token_ids": list(sampling.stop_token_ids),
            "skip_special_tokens": False,
            **_constraints(request),
        },
    }
    if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
        body["return_logprob"] = True
        body["top_logprobs_num"] = max(sampling.logprobs or 0, sampling.prompt_logprobs or 0)
        body["logprob_start_len"] = -1 if sampling.prompt_logprobs is None else 0
    if request.cache_salt:
        body["extra_key"] = request.cache_salt
    return body


def with_bootstrap(body: Mapping[str, Any], address: str, room: int) -> dict[str, Any]:
    """The same for both legs of a hand-off: where they meet. `address` is HOST:PORT of the prefill server."""
    host, _, port = address.rpartition(":")
    return {**body, "bootstrap_host": host, "bootstrap_port": int(port), "bootstrap_room": room}


def _constraints(request: GenerationRequest) -> dict[str, Any]:
    sampling = request.sampling
    if sampling.allowed_token_ids:
        raise InvalidRequestError(
            "allowed_token_ids is not taken by this model's engine; leave it out", param="allowed_token_ids"
        )
    if sampling.reasoning is not None:
        raise InvalidRequestError(
            "thinking_token_budget, or reasoning before a constrained answer, is not taken by this model's "
            "engine; leave it out",
            param="thinking_token_budget",
        )
    biases = token_biases(sampling)
    return {**({"logit_bias": biases} if biases else {}), **sglang_outputs(sampling)}


class AnswerReader:
    """One answer's chunks → deltas."""

    def __init__(self, request: GenerationRequest, choice: int | None = None) -> None:
        """`choice` is the one that all of it belongs to, where it is not `index`."""
        self._request = request
        self._choice = choice
        self._seen: dict[int, int] = {}

    def read(self, data: bytes) -> list[TokenDelta]:
        """Raises what an error in it stands for, EngineError for what is no answer."""
        try:
            told = decode_json(data, _decoder)
        except UnreadableError:
            raise EngineError("the engine's answer is not what SGLang sends; is it another server?") from None
        answers = told if isinstance(told, list) else [told]
        deltas = [
            self._delta(answer, place if isinstance(told, list) else None)
            for place, answer in enumerate(answers)
        ]
        return [delta for delta in deltas if delta.token_ids or delta.finish_reason is not None]

    def _delta(self, answer: Answer, place: int | None) -> TokenDelta:
        if answer.error is not None:
            raise to_error_in_stream(answer.error)
        meta, index = answer.meta_info, answer.index if place is None else place
        is_first = index not in self._seen
        new = meta.completion_tokens - self._seen.get(index, 0)
        self._seen[index] = meta.completion_tokens
        token_ids = answer.output_ids[-new:] if new > 0 else []
        if len(token_ids) != new:
            raise EngineError("the engine sent no output_ids for some of its tokens; update it")
        finish, stop_token_id = _finish(meta.finish_reason, token_ids)
        wants = self._request.sampling.logprobs
        return TokenDelta(
            request_id=self._request.request_id,
            choice=index if self._choice is None else self._choice,
            token_ids=token_ids,
            logprobs=None if wants is None else _logprobs(meta, new, wants),
            prompt_logprobs=_prompt_logprobs(self._request, meta) if is_first and index == 0 else None,
            finish_reason=finish,
            stop_token_id=stop_token_id if stop_token_id in self._request.sampling.stop_token_ids else None,
            cached_tokens=meta.cached_tokens if is_first and index == 0 else None,
        )


def _finish(reason: Mapping[str, Any] | None, token_ids: list[int]) -> tuple[Any, int | None]:
    """Raises the error of an abort: what SGLang says with status 200 once the stream has begun."""
    match reason:
        case None:
            return None, None
        case {"type": "stop", "matched": int(matched)}:
            return "stop", matched
        case {"type": "stop" | "length" as kind}:
            return kind, None
        case _:
            raise _abort_error(reason)


def _abort_error(reason: Mapping[str, Any]) -> AtomeshError:
    status = reason.get("status_code")
    words = {"error": {"message": reason.get("message")}}
    return to_error(status if isinstance(status, int) and status >= 400 else 500, msgspec.json.encode(words))


def _logprobs(meta: _Meta, new: int, wants: int) -> list[TokenLogprobs]:
    own = (meta.output_token_logprobs or [])[-new:] if new else []
    tops = (meta.output_top_logprobs or [])[-new:] if new else []
    if len(own) != new:
        raise EngineError("the engine's logprobs do not fit its tokens; ask without logprobs")
    padded = tops if len(tops) == new else [None] * new
    return [_one(entry, top or [], wants) for entry, top in zip(own, padded, strict=True)]


def _one(entry: _Entry, top: list[_Entry], wants: int) -> TokenLogprobs:
    logprob, token_id = entry[0] or 0.0, entry[1]
    best = sorted(((one[1], one[0] or 0.0) for one in top), key=lambda pair: -pair[1])
    rank = 1 + sum(value > logprob for other, value in best if other != token_id)
    return TokenLogprobs(token_id, logprob, rank, best[:wants])


def _prompt_logprobs(request: GenerationRequest, meta: _Meta) -> list[TokenLogprobs | None] | None:
    wants = request.sampling.prompt_logprobs
    if wants is None or meta.input_token_logprobs is None:
        return None
    own = meta.input_token_logprobs
    tops = meta.input_top_logprobs or [None] * len(own)
    return [
        None if entry[0] is None else _one(entry, top or [], wants)
        for entry, top in zip(own, tops, strict=True)
    ]
