"""Errors name what was sent, what it must be, and where."""

from typing import Any

import msgspec
import pytest

from atomesh.errors import InvalidRequestError
from atomesh.frontend.http.misfit import misfit
from atomesh.frontend.http.request_body import BodyDecoder


class Part(msgspec.Struct, forbid_unknown_fields=True):
    type: str


class Body(msgspec.Struct):
    messages: list[dict[str, Any]]
    temperature: float | None = None
    seed: int | None = None
    stream: bool | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[int, float] | None = None
    parts: list[Part] | None = None


def refusal(body: str) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequestError) as caught:
        BodyDecoder(Body).decode(body.encode())
    return caught.value.message, caught.value.param


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ('"temperature": "hot"', 'temperature is "hot"; it must be a number', "temperature"),
        ('"seed": 1.5', "seed is 1.5; it must be an integer", "seed"),
        ('"stream": "yes"', 'stream is "yes"; it must be a boolean', "stream"),
        ('"seed": true', "seed is true; it must be an integer", "seed"),
        ('"stop": {}', "stop is an object; it must be a text or a list", "stop"),
        ('"stop": ["a", 1]', "stop[1] is 1; it must be a text", "stop[1]"),
        ('"parts": [{}]', "parts[0].type is missing; send it", "parts[0].type"),
        ('"parts": [{"type": null}]', "parts[0].type is null; it must be a text", "parts[0].type"),
        (
            '"parts": [{"type": "a", "kind": 1}]',
            "parts[0] has 'kind', which is not known there; remove it",
            "parts[0].kind",
        ),
        ('"logit_bias": {"a": 1}', "logit_bias has a key that is not an integer; rename it", "logit_bias"),
        (
            '"logit_bias": {"1": "a"}',
            "an entry of logit_bias is a text; it must be a number",
            "logit_bias[...]",
        ),
    ],
)
def test_a_misfit_is_told_in_the_words_of_json(fields: str, message: str, param: str) -> None:
    assert refusal(f'{{"messages": [], {fields}}}') == (message, param)


def test_what_is_missing_or_no_object_is_named() -> None:
    assert refusal("{}") == ("messages is missing; send it", "messages")
    assert refusal('{"messages": "hi"}') == ('messages is "hi"; it must be a list', "messages")
    assert refusal("[]") == ("the body is a list; it must be an object", None)
    assert refusal(" \n") == ("the body is empty; send a JSON object", None)


def test_a_value_that_is_long_or_cannot_be_read_is_told_by_its_type() -> None:
    shown = f'"{"x" * 79}…'
    assert refusal(f'{{"temperature": "{"x" * 500}"}}')[0] == f"temperature is {shown}; it must be a number"
    for late in (f'"{"x" * 5000}"}}', '"hot", "stop": }'):
        assert refusal(f'{{"temperature": {late}')[0] == "temperature is a text; it must be a number"
    deep = "[" * 2000 + "]" * 2000
    assert refusal(f'{{"stop": [1, {deep}]}}')[0] == "stop[0] is an integer; it must be a text"


def test_a_part_of_a_request_has_its_own_root() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert([{"type": "a"}, {}], list[Part])
    error = misfit(caught.value, root="tools")
    assert (error.message, error.param) == ("tools[1].type is missing; send it", "tools[1].type")
