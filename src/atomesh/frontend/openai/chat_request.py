"""POST /v1/chat/completions: the request as it comes, and as the chat template takes it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.sampling_fields import (
    SamplingFields,
    check_shared_fields,
    choose_max_tokens,
    make_sampling,
)
from atomesh.frontend.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from atomesh.frontend.tool_calls.tools import Tool
from atomesh.protocol.sampling import SamplingParams
from atomesh.protocol.sampling_bounds import TOP_LOGPROBS

ROLES = ("system", "developer", "user", "assistant", "tool")


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    messages: list[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None


def parse_chat_sampling(request: ChatRequest, defaults: SamplingDefaults = NO_DEFAULTS) -> SamplingParams:
    """Checks everything but the messages. Raises InvalidRequestError."""
    check_shared_fields(request)
    _refuse_echo(request)
    return make_sampling(
        request,
        defaults,
        max_tokens=choose_max_tokens(request, default=None, least=1),
        logprobs=_count_logprobs(request),
    )


def _count_logprobs(request: ChatRequest) -> int | None:
    if request.top_logprobs is not None:
        if request.top_logprobs and not request.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        TOP_LOGPROBS.check("top_logprobs", request.top_logprobs)
    return (request.top_logprobs or 0) if request.logprobs else None


def _refuse_echo(request: ChatRequest) -> None:
    if request.echo:
        raise InvalidRequestError(
            "echo is not supported in chat; remove it, or send the rendered prompt to /v1/completions",
            param="echo",
        )


def parse_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Plain dictionaries for the template; text parts are joined by newlines, a developer is a system.

    Raises InvalidRequestError with the place of a role or part that is unknown.
    """
    if not messages:
        raise InvalidRequestError("messages is empty; send at least one", param="messages")
    return [_parse_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _parse_message(message: ChatMessage, place: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise InvalidRequestError(
            f"{place}.role is {message.role[:40]!r}; it must be one of {', '.join(ROLES)}",
            param=f"{place}.role",
        )
    if message.content is None and message.role != "assistant":
        raise InvalidRequestError(f"{place}.content is missing; send a text", param=f"{place}.content")
    parsed: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _parse_content(message.content, f"{place}.content"),
    }
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            parsed[name] = value
    reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
    if reasoning is not None:
        parsed |= {"reasoning_content": reasoning, "reasoning": reasoning}
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        parsed["tool_calls"] = [_parse_call(call, f"{place}.tool_calls[{index}]") for index, call in calls]
    return parsed


def _parse_content(content: str | list[ContentPart] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = {"text": part.text, "refusal": part.refusal}.get(part.type)
        if text is None:
            raise InvalidRequestError(
                f"{place}[{index}] is a part of type {part.type[:40]!r}; this model reads only text "
                "and refusal parts with their text",
                param=f"{place}[{index}]",
            )
        texts.append(text)
    return "\n".join(texts)


def _parse_call(call: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Templates take a call's arguments as an object, the API carries them as a JSON string."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(
            f"{place}.function is not a function with a name; send the call as it was answered",
            param=f"{place}.function",
        )
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments else {}
        except (msgspec.DecodeError, RecursionError):
            return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}
