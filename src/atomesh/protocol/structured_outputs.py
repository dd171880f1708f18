"""What an answer must be, as a caller says it; the names and meanings are vLLM's."""

from typing import Any

import msgspec


class StructuredOutputsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of the first five; `json` is a schema, or its text. No answer has idle white space, and no
    other way is ever tried, so that the last two ask for nothing."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None
