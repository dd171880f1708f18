"""POST /v1/messages and /v1/messages/count_tokens: the requests as they come."""

from typing import Any

import msgspec

from atomesh.errors import InvalidRequestError

MAX_TEMPERATURE = 1.0


class ContentBlock(msgspec.Struct, frozen=True):
    """Of any type; each type has some of the fields."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[ContentBlock] | dict[str, Any] | None" = None
    is_error: bool | None = None
    thinking: str | None = None


class InputMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentBlock]


class Tool(msgspec.Struct, frozen=True):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """`display` is "summarized" or "omitted"."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(msgspec.Struct, frozen=True):
    user_id: str | None = None


class PromptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides the prompt. Null means the default."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    # Refused where it names any: the servers would have to be asked from here.
    mcp_servers: list[Any] | None = None
    # Known to the API and without effect: prefixes are cached without being asked to.
    cache_control: object = None


class MessagesRequest(PromptRequest, frozen=True, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    # Known to the API and without effect.
    service_tier: str | None = None


def check_prompt_request(request: PromptRequest) -> None:
    if request.mcp_servers:
        raise InvalidRequestError(
            "mcp_servers names servers that this one would have to call, which it does not; call them "
            "yourself and send their tools in tools",
            param="mcp_servers",
        )


def check_messages_request(request: MessagesRequest) -> None:
    """What is narrower here than in OpenAI's API. Raises InvalidRequestError."""
    temperature = request.temperature
    if temperature is not None and not 0.0 <= temperature <= MAX_TEMPERATURE:
        raise InvalidRequestError(
            f"temperature is {temperature:g}; it must lie in [0, {MAX_TEMPERATURE:g}]", param="temperature"
        )
    if request.max_tokens < 1:
        raise InvalidRequestError(
            f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens"
        )
