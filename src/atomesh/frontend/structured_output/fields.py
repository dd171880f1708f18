"""OpenAI's way to say what an answer must be; vLLM's is `StructuredOutputsParams`."""

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
