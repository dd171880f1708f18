"""Whether, and how long, the model is to think before it answers."""

from typing import Any

from atomesh.errors import InvalidRequestError
from atomesh.frontend.anthropic.messages_request import OutputConfig, Thinking

_IS_ON = {"enabled": True, "adaptive": True, "disabled": False}
_DISPLAYS = ("summarized", "omitted")


def thinking_fields(thinking: Thinking | None, config: OutputConfig | None) -> dict[str, Any]:
    """Of the chat request; where nothing is said, the model's own way holds. Raises InvalidRequestError."""
    if thinking is None:
        return {}
    if thinking.type not in _IS_ON:
        raise InvalidRequestError(
            f"thinking.type is {thinking.type[:40]!r}; it must be one of {', '.join(_IS_ON)}",
            param="thinking.type",
        )
    if thinking.display not in (None, *_DISPLAYS):
        raise InvalidRequestError(
            f"thinking.display is {thinking.display[:40]!r}; it must be one of {', '.join(_DISPLAYS)}",
            param="thinking.display",
        )
    return {"chat_template_kwargs": {"enable_thinking": _IS_ON[thinking.type]}}


def is_shown(thinking: Thinking | None) -> bool:
    """Whether the client wants to read what was thought."""
    return thinking is None or thinking.display != "omitted"
