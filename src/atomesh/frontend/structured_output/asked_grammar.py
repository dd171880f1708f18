"""From what a request asks of its answer to the grammar that the engine obeys. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.frontend.structured_output.fields import (
    JsonSchemaFormat,
    ResponseFormat,
)
from atomesh.protocol.grammar import GrammarSpec
from atomesh.protocol.structured_outputs import StructuredOutputsParams

MAX_CHOICES = 4096
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
ANY_OBJECT = '{"type":"object"}'
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_META = re.compile(r"[\\.+*?()|\[\]{}^$&~#-]")


class AsksForGrammar(Protocol):
    @property
    def response_format(self) -> ResponseFormat | None: ...

    @property
    def structured_outputs(self) -> StructuredOutputsParams | None: ...


def asked_grammar(fields: AsksForGrammar) -> tuple[GrammarSpec, str] | None:
    """The grammar that the fields ask for, and which of them; None for a free answer.

    Raises InvalidRequestError for what is none, and for two at once.
    """
    of_format = None if fields.response_format is None else format_grammar(fields.response_format)
    if fields.structured_outputs is None:
        return None if of_format is None else (of_format, "response_format")
    if of_format is not None:
        raise InvalidRequestError(
            "structured_outputs and response_format both say what the answer must be; send one of them",
            param="structured_outputs",
        )
    return outputs_grammar(fields.structured_outputs), "structured_outputs"


def format_grammar(asked: ResponseFormat, param: str = "response_format") -> GrammarSpec | None:
    """None for a text. Raises InvalidRequestError."""
    if asked.type != "json_schema" and asked.json_schema is not None:
        raise InvalidRequestError(
            f"{param} has a json_schema and the type {asked.type[:40]!r}; the type must be 'json_schema'",
            param=f"{param}.type",
        )
    match asked.type:
        case "text":
            return None
        case "json_object":
            return GrammarSpec(kind="json_schema", source=ANY_OBJECT)
        case "json_schema":
            return _schema_grammar(asked.json_schema, f"{param}.json_schema")
    raise InvalidRequestError(
        f"{param}.type is {asked.type[:40]!r}; it must be 'text', 'json_object' or 'json_schema'",
        param=f"{param}.type",
    )


def _schema_grammar(asked: JsonSchemaFormat | None, param: str) -> GrammarSpec:
    if asked is None or asked.schema is None:
        raise InvalidRequestError(
            f"{param}.schema is missing; send the JSON schema of the answer there, or the type 'json_object'",
            param=f"{param}.schema",
        )
    if asked.name is None or not _NAME.fullmatch(asked.name):
        told = "missing" if asked.name is None else repr(asked.name[:40])
        raise InvalidRequestError(
            f"{param}.name is {told}; send 1 to 64 letters, digits, underscores and hyphens",
            param=f"{param}.name",
        )
    return json_grammar(asked.schema, f"{param}.schema")


def outputs_grammar(asked: StructuredOutputsParams, param: str = "structured_outputs") -> GrammarSpec:
    """Raises InvalidRequestError unless exactly one kind is asked for."""
    told = [name for name in _KINDS if getattr(asked, name) not in (None, False)]
    if len(told) != 1:
        raise InvalidRequestError(
            f"{param} has {' and '.join(told) or 'nothing'}; send exactly one of {', '.join(_KINDS)}",
            param=param,
        )
    if asked.json is not None:
        return json_grammar(asked.json, f"{param}.json")
    if asked.regex is not None:
        return GrammarSpec(kind="regex", source=_text(asked.regex, f"{param}.regex"))
    if asked.choice is not None:
        return GrammarSpec(kind="regex", source=_one_of(asked.choice, f"{param}.choice"))
    if asked.grammar is not None:
        return GrammarSpec(kind="lark", source=_text(asked.grammar, f"{param}.grammar"))
    return GrammarSpec(kind="json_schema", source=ANY_OBJECT)


def json_grammar(schema: Mapping[str, Any] | str, param: str) -> GrammarSpec:
    """Of a schema, or of its text. Raises InvalidRequestError for what is no object."""
    parsed = _parse(schema, param) if isinstance(schema, str) else schema
    if not isinstance(parsed, Mapping):
        raise InvalidRequestError(
            f"{param} is {str(schema)[:40]!r}; it must be a JSON schema that is an object", param=param
        )
    try:
        return GrammarSpec(kind="json_schema", source=msgspec.json.encode(parsed).decode())
    except (RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"{param} is no JSON schema: {error}", param=param) from None


def _parse(text: str, param: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"{param} is a text that is no JSON: {error}", param=param) from None


def _text(text: str, param: str) -> str:
    if not text:
        raise InvalidRequestError(f"{param} is empty, so nothing could be said; send one", param=param)
    return text


def _one_of(choices: Sequence[str], param: str) -> str:
    """A regular expression for just these."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidRequestError(
            f"{param} has {len(choices)} texts; it must have 1 to {MAX_CHOICES}", param=param
        )
    for index, choice in enumerate(choices):
        if not choice:
            raise InvalidRequestError(
                f"{param}[{index}] is empty; leave it out, or send a text", param=f"{param}[{index}]"
            )
    return "|".join(_META.sub(r"\\\g<0>", choice) for choice in choices)
