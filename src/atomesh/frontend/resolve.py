"""From what a caller asks for, in words, to what the engine obeys, in token ids."""

import math
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from atomesh.errors import ContextLengthError, InvalidRequestError
from atomesh.protocol.sampling import GREEDY_BELOW, SamplingParams, SamplingSpec
from atomesh.protocol.worker import ModelDescription

if TYPE_CHECKING:
    from atomesh.frontend.text.tokenizer import Tokenizer

_BIAS_LIMIT = 100.0


def resolve_sampling(
    params: SamplingParams, tokenizer: "Tokenizer", model: ModelDescription, prompt_len: int
) -> SamplingSpec:
    """Settle every default for a prompt of `prompt_len` tokens; a caller without a seed is given one.

    Raises ContextLengthError when the prompt alone fills the context, InvalidRequestError for an id that
    the model does not have.
    """
    return fit_to_prompt(resolve_shared(params, tokenizer, model), params, model, prompt_len)


def resolve_shared(params: SamplingParams, tokenizer: "Tokenizer", model: ModelDescription) -> SamplingSpec:
    """What is the same for all prompts of a call, its lists once in memory; `fit_to_prompt` makes the rest.

    Raises InvalidRequestError for an id that the model does not have.
    """
    greedy = params.temperature < GREEDY_BELOW
    spec = SamplingSpec(
        seed=0,
        max_tokens=0,
        temperature=params.temperature,
        top_p=1.0 if greedy else params.top_p,
        top_k=0 if greedy else max(params.top_k, 0),
        min_p=0.0 if greedy else params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=float(params.repetition_penalty),
        min_tokens=params.min_tokens,
        eos_token_ids=() if params.ignore_eos else model.eos_token_ids,
        stop_token_ids=_known_ids("stop_token_ids", params.stop_token_ids or (), model),
        logit_bias=_logit_bias(params.logit_bias or {}, model),
        allowed_token_ids=_allowed_token_ids(params.allowed_token_ids, model),
        bad_words=_encode_bad_words(params, tokenizer, model),
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
    )
    _check_choice(spec, model)
    return spec


def fit_to_prompt(
    shared: SamplingSpec,
    params: SamplingParams,
    model: ModelDescription,
    prompt_len: int,
    *,
    param: str = "prompt",
) -> SamplingSpec:
    """`shared` for a prompt of `prompt_len` tokens, which came in the field `param`.

    Raises ContextLengthError when the prompt alone fills the context.
    """
    max_tokens = _max_tokens(params.max_tokens, model, prompt_len, param)
    return replace(
        shared,
        seed=secrets.randbits(63) if params.seed is None else params.seed,
        max_tokens=max_tokens,
        min_tokens=min(shared.min_tokens, max_tokens),
    )


def _check_choice(spec: SamplingSpec, model: ModelDescription) -> None:
    """Refuse what leaves no token for the first place of the answer."""
    banned = {word[0] for word in spec.bad_words if len(word) == 1}
    if spec.min_tokens:
        banned.update(spec.eos_token_ids, spec.stop_token_ids)
    if spec.allowed_token_ids and banned.issuperset(spec.allowed_token_ids):
        raise InvalidRequestError(
            f"allowed_token_ids has nothing but {sorted(spec.allowed_token_ids)[:5]}, which min_tokens or "
            "bad_words forbid, so nothing could be said; allow other tokens, or loosen the others",
            param="allowed_token_ids",
        )
    if len(banned) >= model.vocab_size:
        raise InvalidRequestError(
            "min_tokens and bad_words forbid every token of the model, so nothing could be said; loosen them",
            param="min_tokens" if spec.min_tokens else "bad_words",
        )


def _max_tokens(asked: int | None, model: ModelDescription, prompt_len: int, param: str) -> int:
    room = model.max_model_len - prompt_len
    if room <= 0:
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens, and your prompt has "
            f"{prompt_len}, which leaves no room for an answer; shorten the prompt",
            param=param,
        )
    return room if asked is None else min(asked, room)


def _known_ids(field: str, token_ids: Iterable[int], model: ModelDescription) -> tuple[int, ...]:
    known = tuple(dict.fromkeys(token_ids))
    for token_id in known:
        if not 0 <= token_id < model.vocab_size:
            raise InvalidRequestError(
                f"{field} has the id {token_id}; this model's ids lie in [0, {model.vocab_size - 1}]",
                param=field,
            )
    return known


def _allowed_token_ids(token_ids: list[int] | None, model: ModelDescription) -> tuple[int, ...]:
    if token_ids is None:
        return ()
    if not token_ids:
        raise InvalidRequestError(
            "allowed_token_ids is empty, so nothing could be said; name at least one id or leave it out",
            param="allowed_token_ids",
        )
    return _known_ids("allowed_token_ids", token_ids, model)


def _logit_bias(bias: dict[int, float], model: ModelDescription) -> dict[int, float]:
    _known_ids("logit_bias", bias, model)
    for token_id, value in bias.items():
        if math.isnan(value):
            raise InvalidRequestError(
                f"logit_bias of {token_id} is NaN; it must lie in [{-_BIAS_LIMIT:.0f}, {_BIAS_LIMIT:.0f}]",
                param="logit_bias",
            )
    return {token_id: min(max(value, -_BIAS_LIMIT), _BIAS_LIMIT) for token_id, value in bias.items()}


def _encode_bad_words(
    params: SamplingParams, tokenizer: "Tokenizer", model: ModelDescription
) -> tuple[tuple[int, ...], ...]:
    """Each bad word as it begins a text and, where that begins with another token, as it follows a space."""
    sequences: list[tuple[int, ...]] = []
    for word in params.bad_words or ():
        bare, spaced = (tuple(_encode_word(tokenizer, prefix + word.lstrip())) for prefix in ("", " "))
        if not bare:
            raise InvalidRequestError("bad_words has an empty word; leave it out", param="bad_words")
        sequences.append(bare)
        if spaced[0] != bare[0] and len(spaced) == len(bare):
            sequences.append(spaced)
    for sequence in sequences:
        _known_ids("bad_words", sequence, model)
    return tuple(dict.fromkeys(sequences))


def _encode_word(tokenizer: "Tokenizer", text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)
