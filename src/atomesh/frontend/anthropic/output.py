"""The form that an answer is to have."""

from typing import Any

from atomesh.errors import InvalidRequestError
from atomesh.frontend.anthropic.messages_request import OutputConfig, OutputFormat
from atomesh.frontend.structured_output.fields import JsonSchemaFormat, ResponseFormat

_NAME = "output"


def output_fields(config: OutputConfig | None, older: OutputFormat | None) -> dict[str, Any]:
    """Of the chat request; `older` is `output_format`, as clients sent it before `output_config` came.

    Raises InvalidRequestError.
    """
    newer = None if config is None else config.format
    if newer is not None and older is not None:
        raise InvalidRequestError(
            "output_config.format and output_format are both set; send the first alone", param="output_format"
        )
    asked, place = (newer, "output_config.format") if older is None else (older, "output_format")
    return {} if asked is None else {"response_format": _response_format(asked, place)}


def _response_format(asked: OutputFormat, place: str) -> ResponseFormat:
    if asked.type != "json_schema":
        raise InvalidRequestError(
            f"{place}.type is {asked.type[:40]!r}; it must be json_schema", param=f"{place}.type"
        )
    if asked.schema is None:
        raise InvalidRequestError(
            f"{place}.schema is missing; send the JSON schema that the answer is to match",
            param=f"{place}.schema",
        )
    return ResponseFormat(asked.type, JsonSchemaFormat(_NAME, schema=asked.schema, strict=True))
