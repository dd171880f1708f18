"""The fields that chat and completions share, and their way to SamplingParams. Null means the default."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.frontend.generation import Generation
from atomesh.frontend.openai.answer_head import AnswerHead, ChunkWriter, no_reasoning
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.sampling_defaults import SamplingDefaults
from atomesh.frontend.structured_output.fields import ResponseFormat
from atomesh.protocol.sampling import SamplingParams
from atomesh.protocol.structured_outputs import StructuredOutputsParams

_COPIED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
)
_INT64 = (-(2**63), 2**63 - 1)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsParams | None = None
    # Refused beforehand where they ask for anything (frontend/validation.py).
    tools: object = None
    tool_choice: object = None
    modalities: object = None
    # Known to the API and without effect on the answer.
    parallel_tool_calls: bool | None = None
    user: str | None = None
    metadata: object = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


def choose_max_tokens(fields: SamplingFields, default: int | None, least: int) -> int | None:
    """`max_completion_tokens` before `max_tokens` before `default`; None is the rest of the context."""
    name, value = "max_completion_tokens", fields.max_completion_tokens
    if value is None:
        name, value = "max_tokens", fields.max_tokens
    if value is None:
        return default
    if value < least:
        raise InvalidRequestError(f"{name} is {value}; it must be at least {least}", param=name)
    return value


def make_sampling(
    fields: SamplingFields,
    defaults: SamplingDefaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """What the request says, and the model's defaults for what it does not say.

    Raises InvalidRequestError for a value out of range. Of two `prompt_logprobs` the larger counts.
    """
    settled = {**defaults.told(), **_told(fields, _COPIED)}
    if prompt_logprobs is not None:
        settled["prompt_logprobs"] = max(prompt_logprobs, settled.get("prompt_logprobs", 0))
    return SamplingParams(n=count_choices(fields), max_tokens=max_tokens, logprobs=logprobs, **settled)


def _told(source: SamplingFields, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(source, name)) is not None}


def count_choices(fields: SamplingFields) -> int:
    return 1 if fields.n is None else fields.n


def check_shared_fields(fields: SamplingFields) -> None:
    """What no type says: which fields go together."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequestError(
            "stream_options is only allowed with stream: true; remove it or stream", param="stream_options"
        )
    if fields.best_of is not None and fields.best_of != count_choices(fields):
        raise InvalidRequestError(
            f"best_of is {fields.best_of} and n is {count_choices(fields)}; only equal values are supported",
            param="best_of",
        )
    if fields.stream and fields.prompt_logprobs is not None:
        raise InvalidRequestError(
            "prompt_logprobs cannot be streamed; remove it or set stream to false", param="prompt_logprobs"
        )
    if fields.priority is not None and not _INT64[0] <= fields.priority <= _INT64[1]:
        raise InvalidRequestError(f"priority is {fields.priority}; it must be an int64", param="priority")
    if fields.cache_salt == "":
        raise InvalidRequestError(
            "cache_salt is empty; send a non-empty string or leave it out", param="cache_salt"
        )


def make_chunk_writer(
    fields: SamplingFields,
    head: AnswerHead,
    generations: Sequence[Generation],
    count_reasoning: Callable[[], int] = no_reasoning,
) -> ChunkWriter:
    options = fields.stream_options or StreamOptions()
    return ChunkWriter(
        head,
        generations,
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        count_reasoning=count_reasoning,
    )


def check_answers(prompts: int, choices: int, options: FrontendOptions) -> None:
    """Raises InvalidRequestError when one call asks for too much."""
    if prompts > options.max_prompts:
        raise InvalidRequestError(
            f"prompt has {prompts} prompts; the limit is {options.max_prompts}: send several requests",
            param="prompt",
        )
    if prompts * choices > options.max_answers:
        raise InvalidRequestError(
            f"{prompts} prompts with n = {choices} are {prompts * choices} answers; the limit is "
            f"{options.max_answers}: send several requests",
            param="n",
        )
