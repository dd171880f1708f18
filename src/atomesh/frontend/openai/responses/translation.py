"""A response's request as a chat's, and a chat's errors in the words of the response's request."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from atomesh.errors import AtomeshError, InvalidRequestError
from atomesh.frontend.http.misfit import misfit
from atomesh.frontend.openai.chat_request import ChatRequest
from atomesh.frontend.openai.responses.conversation import Message
from atomesh.frontend.openai.responses.request import (
    LOGPROBS,
    PromptFields,
    ResponsesRequest,
    TextFormat,
    Tool,
    ToolChoice,
)

_COPIED = (
    "temperature",
    "top_p",
    "seed",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "priority",
    "cache_salt",
    "structured_outputs",
    "thinking_token_budget",
    "include_reasoning",
    "prompt_cache_key",
    "user",
)
_CHOICES = ("none", "auto", "required")
_WHOLE_PLACES = re.compile(r"^(messages\b.*|prompt$)")
_NAMES = (
    (re.compile(r"\bmax_(completion_)?tokens\b"), "max_output_tokens"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"\bresponse_format(\.json_schema)?\b"), "text.format"),
    (re.compile(r"\b(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"\btool_choice\.(function|allowed_tools)\b"), "tool_choice"),
)


def to_chat(request: PromptFields, messages: Sequence[Message]) -> ChatRequest:
    """For `messages`, which stand for its input and all before it. Raises InvalidRequestError."""
    fields: dict[str, Any] = {"model": request.model, "messages": list(messages)}
    fields["chat_template_kwargs"] = request.chat_template_kwargs
    fields["parallel_tool_calls"] = request.parallel_tool_calls
    if request.tools:
        fields["tools"] = [_chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools)]
    fields["tool_choice"] = _chat_choice(request.tool_choice)
    if request.text is not None and request.text.format is not None:
        fields["response_format"] = _chat_format(request.text.format)
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if isinstance(request, ResponsesRequest):
        fields |= _sampling_fields(request)
    try:
        return msgspec.convert(
            {name: value for name, value in fields.items() if value is not None}, ChatRequest
        )
    except msgspec.ValidationError as error:
        raise misfit(error, fields.__getitem__) from None


def _sampling_fields(request: ResponsesRequest) -> dict[str, Any]:
    fields = {name: getattr(request, name) for name in _COPIED}
    fields["max_completion_tokens"] = request.max_output_tokens
    if request.includes(LOGPROBS) or request.top_logprobs:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    return fields


def _chat_tool(tool: Tool, place: str) -> dict[str, Any]:
    if tool.type != "function":
        raise InvalidRequestError(
            f"{place}.type is {tool.type[:40]!r}, a tool that this server does not have; only tools of type "
            "'function' can be used, which the client runs",
            param=f"{place}.type",
        )
    if not tool.name:
        raise InvalidRequestError(f"{place}.name is missing; name the function", param=f"{place}.name")
    given = {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    told = {name: value for name, value in given.items() if value is not None}
    return {"type": "function", "function": {"name": tool.name, **told}}


def _chat_choice(choice: str | ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise InvalidRequestError(
                f"tool_choice is {choice[:40]!r}; it must be one of {', '.join(_CHOICES)}, or an object",
                param="tool_choice",
            )
        return choice
    if choice.type == "function":
        if not choice.name:
            raise InvalidRequestError(
                "tool_choice.name is missing; name the function", param="tool_choice.name"
            )
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type == "allowed_tools":
        return {"type": "allowed_tools", "allowed_tools": _allowed_tools(choice)}
    raise InvalidRequestError(
        f"tool_choice.type is {choice.type[:40]!r}; it must be function or allowed_tools",
        param="tool_choice.type",
    )


def _allowed_tools(choice: ToolChoice) -> dict[str, Any]:
    if choice.mode not in ("auto", "required"):
        raise InvalidRequestError(
            "tool_choice.mode must be auto or required where the type is allowed_tools",
            param="tool_choice.mode",
        )
    tools = []
    for index, tool in enumerate(choice.tools or ()):
        place = f"tool_choice.tools[{index}]"
        if tool.type != "function" or not tool.name:
            raise InvalidRequestError(f"{place} is no function with a name", param=place)
        tools.append({"type": "function", "function": {"name": tool.name}})
    return {"mode": choice.mode, "tools": tools}


def _chat_format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type in ("text", "json_object"):
        return {"type": wanted.type}
    if wanted.type != "json_schema":
        raise InvalidRequestError(
            f"text.format.type is {wanted.type[:40]!r}; it must be text, json_object or json_schema",
            param="text.format.type",
        )
    if wanted.schema is None:
        raise InvalidRequestError(
            "text.format.schema is missing; send the schema", param="text.format.schema"
        )
    given = {"description": wanted.description, "strict": wanted.strict}
    told = {name: value for name, value in given.items() if value is not None}
    schema = {"name": wanted.name or "response", "schema": wanted.schema, **told}
    return {"type": "json_schema", "json_schema": schema}


@contextmanager
def in_words_of_responses() -> Iterator[None]:
    """An error about a chat's field comes out as one about the field that it was made from."""
    try:
        yield
    except AtomeshError as error:
        param, message = error.param, error.message
        if param is not None:
            error.param = translate_place(param)
            if message.startswith(param):
                message = error.param + message.removeprefix(param)
        error.message = _rename(message)
        raise


def translate_place(param: str) -> str:
    return "input" if _WHOLE_PLACES.search(param) else _rename(param)


def _rename(text: str) -> str:
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return text
