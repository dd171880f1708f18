"""Whether, how hard and how long the model is to think before it answers."""

from collections.abc import Iterable
from typing import Any

from atomesh.errors import InvalidRequestError
from atomesh.frontend.anthropic.messages_request import OutputConfig, Thinking

_TYPES = ("enabled", "adaptive", "disabled")
_DISPLAYS = ("summarized", "omitted")
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}


def thinking_fields(
    thinking: Thinking | None, config: OutputConfig | None, *, reasons: bool
) -> dict[str, Any]:
    """Of the chat request; where nothing is said, the model's own way holds. Raises InvalidRequestError.

    A model that does not think takes no effort at it, and hears of none.
    """
    effort = _effort(config)
    fields = {"reasoning_effort": effort} if effort is not None and reasons else {}
    if thinking is None:
        return fields
    _check(thinking)
    if thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    return {
        **fields,
        "chat_template_kwargs": {"enable_thinking": True},
        "thinking_token_budget": thinking.budget_tokens,
    }


def is_shown(thinking: Thinking | None) -> bool:
    """Whether the client wants to read what was thought."""
    return thinking is None or thinking.display != "omitted"


def _effort(config: OutputConfig | None) -> str | None:
    if config is None or config.effort is None:
        return None
    if config.effort not in _EFFORTS:
        raise _not_one_of("output_config.effort", config.effort, _EFFORTS)
    return _EFFORTS[config.effort]


def _check(thinking: Thinking) -> None:
    if thinking.type not in _TYPES:
        raise _not_one_of("thinking.type", thinking.type, _TYPES)
    if thinking.display is not None and thinking.display not in _DISPLAYS:
        raise _not_one_of("thinking.display", thinking.display, _DISPLAYS)
    if thinking.budget_tokens is not None and thinking.budget_tokens < 1:
        raise InvalidRequestError(
            f"thinking.budget_tokens is {thinking.budget_tokens}; it must be at least 1, or leave it out",
            param="thinking.budget_tokens",
        )


def _not_one_of(place: str, given: str, known: Iterable[str]) -> InvalidRequestError:
    return InvalidRequestError(
        f"{place} is {given[:40]!r}; it must be one of {', '.join(known)}", param=place
    )
