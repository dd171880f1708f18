"""Tools and the choice among them, in the words of the chat API."""

from collections.abc import Sequence
from typing import Any

from atomesh.errors import InvalidRequestError
from atomesh.frontend.anthropic.messages_request import Tool, ToolChoice
from atomesh.frontend.tool_calls.tools import FunctionDefinition
from atomesh.frontend.tool_calls.tools import Tool as ChatTool

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def tool_fields(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> dict[str, Any]:
    """Of the chat request; none for what is not said. Raises InvalidRequestError."""
    fields: dict[str, Any] = {}
    if tools:
        fields["tools"] = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    if choice is not None:
        fields["tool_choice"] = _choice(choice)
        if choice.disable_parallel_tool_use is not None:
            fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return fields


def _function(tool: Tool, place: str) -> ChatTool:
    if tool.type not in (None, "custom"):
        raise InvalidRequestError(
            f"{place} has the type {tool.type[:60]!r}, a tool that Anthropic runs or describes itself; this "
            "server has none of them: send custom tools with their input_schema",
            param=f"{place}.type",
        )
    if tool.name is None:
        raise _missing(f"{place}.name")
    if tool.input_schema is None:
        raise _missing(f"{place}.input_schema")
    definition = FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict)
    return ChatTool("function", definition)


def _missing(place: str) -> InvalidRequestError:
    return InvalidRequestError(f"{place} is missing; a tool needs it", param=place)


def _choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidRequestError(
                "tool_choice.name is missing; the type 'tool' needs it", param="tool_choice.name"
            )
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in _CHOICES:
        raise InvalidRequestError(
            f"tool_choice.type is {choice.type[:40]!r}; it must be one of tool, {', '.join(_CHOICES)}",
            param="tool_choice.type",
        )
    return _CHOICES[choice.type]
