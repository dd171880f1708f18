"""The functions that a request lets the model call, and which of them it must: as sent, and as checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.frontend.tool_calls.parameters_schema import check_parameters

MAX_TOOLS = 128
MAX_TOOL_BYTES = 256 * 2**10  # of all tools together, as JSON
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHOICES = "'none', 'auto', 'required', a function, or allowed_tools"

Need = Literal["none", "auto", "required"]


class FunctionDefinition(msgspec.Struct, frozen=True):
    """`parameters` is a JSON schema of an object; without one the function takes nothing."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    type: str
    function: FunctionDefinition | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What the model is told and what it may do.

    `shown` are all tools as the chat template takes them; `callable` are the parameters' schemas of those
    that may be called, by name, and `need` whether one must be. Without `is_parallel` there is one call.
    """

    shown: Sequence[Mapping[str, Any]]
    callable: Mapping[str, Mapping[str, Any]]
    need: Need = "none"
    is_parallel: bool = True


NO_TOOLS = ToolUse((), {})


def plan_tool_use(
    tools: Sequence[Tool] | None, choice: str | Mapping[str, Any] | None, is_parallel: bool | None
) -> ToolUse:
    """Raises InvalidRequestError, whose `param` is the path of what is wrong."""
    functions = _check_tools(tools or ())
    need, names, is_one = _read_choice(choice, functions)
    if need == "none" or not functions:
        return NO_TOOLS
    return ToolUse(
        shown=[_shown(function) for function in functions.values()],
        callable={name: schema_of(functions[name]) for name in names},
        need=need,
        is_parallel=is_parallel is not False and not is_one,
    )


def schema_of(function: FunctionDefinition) -> dict[str, Any]:
    """Of an object, always."""
    if function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **function.parameters}


def _shown(function: FunctionDefinition) -> dict[str, Any]:
    told: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        told["description"] = function.description
    if function.parameters is not None:
        told["parameters"] = function.parameters
    return {"type": "function", "function": told}


def _check_tools(tools: Sequence[Tool]) -> dict[str, FunctionDefinition]:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(
            f"tools has {len(tools)} functions; the limit is {MAX_TOOLS}: send fewer", param="tools"
        )
    functions: dict[str, FunctionDefinition] = {}
    for index, tool in enumerate(tools):
        function = _check_tool(tool, f"tools[{index}]")
        if function.name in functions:
            raise InvalidRequestError(
                f"tools[{index}].function.name is {function.name!r}, as another's is; names must differ",
                param=f"tools[{index}].function.name",
            )
        functions[function.name] = function
    size = len(msgspec.json.encode(tools))
    if size > MAX_TOOL_BYTES:
        raise InvalidRequestError(
            f"tools has {size} bytes of JSON; the limit is {MAX_TOOL_BYTES}: send fewer or shorter ones",
            param="tools",
        )
    return functions


def _check_tool(tool: Tool, place: str) -> FunctionDefinition:
    if tool.type != "function":
        raise InvalidRequestError(
            f"{place}.type is {tool.type[:40]!r}; it must be 'function'", param=f"{place}.type"
        )
    if tool.function is None:
        raise InvalidRequestError(
            f"{place}.function is missing; send its name and parameters", param=f"{place}.function"
        )
    name = tool.function.name
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{place}.function.name is {name[:80]!r}; it must have 1 to 64 of the characters a-z, A-Z, 0-9, "
            "_, . and -",
            param=f"{place}.function.name",
        )
    if tool.function.parameters is not None:
        check_parameters(tool.function.parameters, f"{place}.function.parameters")
    return tool.function


def _read_choice(
    choice: str | Mapping[str, Any] | None, functions: Mapping[str, FunctionDefinition]
) -> tuple[Need, Sequence[str], bool]:
    """The need, the names that may be called, and whether only one call is asked for."""
    everything = tuple(functions)
    if choice is None:
        return "auto", everything, False
    if isinstance(choice, str):
        return _read_word(choice, everything), everything, False
    kind = choice.get("type")
    if kind == "function":
        return "required", [_known_name(choice, "tool_choice", functions)], True
    if kind == "allowed_tools":
        return _read_allowed(choice, functions)
    raise _bad_choice(choice)


def _read_word(choice: str, names: Sequence[str]) -> Need:
    if choice == "required":
        if not names:
            raise InvalidRequestError(
                "tool_choice is 'required', but there are no tools; send tools or leave it out",
                param="tool_choice",
            )
        return "required"
    if choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    raise _bad_choice(choice)


def _read_allowed(
    choice: Mapping[str, Any], functions: Mapping[str, FunctionDefinition]
) -> tuple[Need, Sequence[str], bool]:
    """As chat has it, with the mode and the tools in an object of that name, or as Responses has it."""
    inner = choice.get("allowed_tools", choice)
    place = "tool_choice.allowed_tools" if "allowed_tools" in choice else "tool_choice"
    mode = inner.get("mode") if isinstance(inner, Mapping) else None
    if mode not in ("auto", "required"):
        raise InvalidRequestError(
            f"{place}.mode is {mode!r:.40}; it must be 'auto' or 'required'", param=f"{place}.mode"
        )
    tools = inner.get("tools")
    if not isinstance(tools, list) or not tools:
        raise InvalidRequestError(
            f"{place}.tools is empty or no list; name at least one of tools", param=f"{place}.tools"
        )
    names = [_known_name(tool, f"{place}.tools[{index}]", functions) for index, tool in enumerate(tools)]
    return "required" if mode == "required" else "auto", list(dict.fromkeys(names)), False


def _known_name(tool: Any, place: str, functions: Mapping[str, FunctionDefinition]) -> str:
    """Of `{"type": "function", "function": {"name": …}}`, or with the name beside the type."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or name not in functions:
        raise InvalidRequestError(
            f"{place} names the function {name!r:.80}, which is not among tools; name one that is",
            param=place,
        )
    return name


def _bad_choice(choice: object) -> InvalidRequestError:
    return InvalidRequestError(f"tool_choice is {choice!r:.80}; it must be {_CHOICES}", param="tool_choice")
