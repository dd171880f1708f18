"""POST /v1/completions: the request as it comes, and its prompts in all their forms."""

from collections.abc import Sequence

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.sampling_fields import (
    SamplingFields,
    check_shared_fields,
    choose_max_tokens,
    make_sampling,
)
from atomesh.frontend.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from atomesh.protocol.sampling import SamplingParams
from atomesh.protocol.sampling_bounds import COMPLETION_LOGPROBS

DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None


def parse_completion_sampling(
    request: CompletionRequest, defaults: SamplingDefaults = NO_DEFAULTS
) -> SamplingParams:
    """Checks everything but the prompt. Raises InvalidRequestError."""
    check_shared_fields(request)
    _check_suffix(request)
    if request.logprobs is not None:
        COMPLETION_LOGPROBS.check("logprobs", request.logprobs)
    return make_sampling(
        request,
        defaults,
        max_tokens=choose_max_tokens(request, DEFAULT_MAX_TOKENS, least=0 if request.echo else 1),
        logprobs=request.logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
    )


def _check_suffix(request: CompletionRequest) -> None:
    for name in ("echo", "truncate_prompt_tokens"):
        if request.suffix and getattr(request, name):
            raise InvalidRequestError(
                f"{name} cannot be had with suffix, whose prompt is made of two texts; remove one of both",
                param=name,
            )


def split_prompts(
    prompt: str | Sequence[str | int | list[int]] | None, *, may_be_empty: bool = False
) -> list[Prompt]:
    """One text, one list of ids, or a list of either; never a mixture. Raises InvalidRequestError.

    `may_be_empty`: a text or a list of ids, not the list of them.
    """
    if prompt == "" and may_be_empty:
        return [""]
    if not prompt:
        raise InvalidRequestError("prompt is missing or empty; send a text or token ids", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if len(kinds) > 1:
        raise InvalidRequestError(
            "prompt mixes texts, ids and lists of ids; send prompts of one kind", param="prompt"
        )
    if kinds == {int}:
        return [list(prompt)]  # type: ignore[arg-type]
    if not (may_be_empty or all(prompt)):
        place = next(index for index, item in enumerate(prompt) if not item)
        raise InvalidRequestError(f"prompt[{place}] is empty; send a non-empty one", param=f"prompt[{place}]")
    return list(prompt)  # type: ignore[arg-type]
