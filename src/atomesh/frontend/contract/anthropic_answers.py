"""What the answers of Anthropic's routes look like, for the OpenAPI document."""

from typing import Any, Literal

import msgspec


class AnthropicErrorDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct):
    """On /v1/messages and what lies below it."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class AnthropicUsage(msgspec.Struct):
    """`input_tokens` are those that no cache had."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(msgspec.Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage


class TokenCount(msgspec.Struct):
    input_tokens: int
