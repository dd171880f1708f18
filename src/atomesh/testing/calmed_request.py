"""A random request made one that a tiny model can answer: strange still, but there to be had."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Body = dict[str, Any]

MOST_TOKENS = 12
MOST_CHOICES = 4
LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
_OF_OTHER_APIS = ("prompt", "messages", "max_tokens", "max_completion_tokens")
# What another field must go with, or a chat template may not take: left out more often than not.
_DOUBTFUL = (
    "best_of",
    "stream_options",
    "continue_final_message",
    "add_generation_prompt",
    "truncate_prompt_tokens",
    "min_tokens",
    "chat_template_kwargs",
    "top_logprobs",
    "prompt_logprobs",
    "allowed_token_ids",
    "echo",
)
# Whose insides are strange in most cases.
_RARE = (
    "tools",
    "tool_choice",
    "thinking",
    "system",
    "output_config",
    "output_format",
    "mcp_servers",
    "response_format",
    "structured_outputs",
    "reasoning",
    "reasoning_effort",
    "text",
    "previous_response_id",
    "conversation",
    "background",
    "include",
    "suffix",
    "thinking_token_budget",
)


def calmed(path: str, body: Body, rng: random.Random, vocab_size: int) -> Body:
    """A copy: of the model that there is, short, and with ids that the model has."""
    dropped = {"model", *_chosen(_DOUBTFUL, 0.7, rng), *_chosen(_RARE, 0.95, rng)}
    if path.startswith("/v1/responses"):
        dropped.update(_OF_OTHER_APIS)
    calm = {name: value for name, value in body.items() if name not in dropped}
    for name, mend in _MENDED.items():
        if calm.get(name) is not None:
            calm[name] = mend(calm[name], vocab_size)
    if path.startswith("/v1/responses"):
        calm.setdefault("input", "hello")
    if (limit := LIMITS.get(path)) is not None:
        calm[limit] = rng.randint(1, MOST_TOKENS)
    _agree(calm)
    return calm


def _chosen(names: Sequence[str], share: float, rng: random.Random) -> list[str]:
    return [name for name in names if rng.random() < share]


def _agree(calm: Body) -> None:
    """What must go with another field does."""
    if calm.get("n") not in (None, 1):
        calm["temperature"] = 0.8
    if calm.get("best_of") is not None:
        calm["best_of"] = calm.get("n") or 1
    if not calm.get("stream"):
        calm.pop("stream_options", None)


def _known_ids(ids: object, vocab_size: int) -> object:
    return [one % vocab_size for one in ids if isinstance(one, int)] if isinstance(ids, list) else ids


def _known_bias(bias: object, vocab_size: int) -> object:
    if not isinstance(bias, dict):
        return bias
    return {str(int(name) % vocab_size): value for name, value in bias.items() if name.isdecimal()}


def _fewer(count: object, _vocab_size: int) -> object:
    return 1 + count % MOST_CHOICES if isinstance(count, int) else count


def _said(messages: object, _vocab_size: int) -> object:
    return (
        [_with_text(one) for one in messages[:4] if isinstance(one, Mapping)]
        if isinstance(messages, list)
        else messages
    )


def _with_text(message: Mapping[str, Any]) -> Body:
    content = message.get("content")
    text = content[:24] if isinstance(content, str) and content else "hello"
    return {"role": message.get("role"), "content": text}


def _prompt(prompt: object, vocab_size: int) -> object:
    if isinstance(prompt, str):
        return prompt[:24]
    ids = [one % vocab_size for one in prompt if isinstance(one, int)] if isinstance(prompt, list) else []
    return ids[:24] or "hello"


_MENDED: Mapping[str, Callable[[Any, int], object]] = {
    "stop_token_ids": _known_ids,
    "allowed_token_ids": _known_ids,
    "tokens": _known_ids,
    "logit_bias": _known_bias,
    "n": _fewer,
    "messages": _said,
    "prompt": _prompt,
    "input": lambda _input, _vocab_size: "hello",
}
