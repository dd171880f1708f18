"""The fields that say what an answer must be: OpenAI's `response_format`, and vLLM's `structured_outputs`."""

from typing import Any

import msgspec


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`strict` is taken for what it is to us: always true."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of the first five; `json` is a schema, or its text. No answer has idle white space, and no
    other way is ever tried, so that the last two ask for nothing."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None
