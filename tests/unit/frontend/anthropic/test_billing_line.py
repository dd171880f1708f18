"""What of a system prompt is taken for the changing line, and what is not."""

import json
from typing import Any

import msgspec
import pytest

from atomesh.frontend.anthropic.billing_line import MAX_CHARS, stable_system, without_billing_line

LINE = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;"


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        LINE[:-1],
        "x-anthropic-billing-header: cc_version=2.1.38.713; cc_entrypoint=sdk-ts; cch=90d92; ",
        "x-anthropic-billing-header:cc_version=2.1.15;cc_entrypoint=cli",
        "x-anthropic-billing-header: cc_version=2.1.9; cch=; cc_workload=a=b;",
    ],
)
@pytest.mark.parametrize(
    ("after", "left"),
    [("", ""), ("\n", ""), ("\nYou are", "You are"), ("\n\nYou are", "You are"), ("\r\n\r\nYou", "You")],
)
def test_the_line_goes_and_the_rest_stays(line: str, after: str, left: str) -> None:
    assert without_billing_line(line + after) == left


@pytest.mark.parametrize(
    "system",
    [
        "",
        "You are an agent.",
        f"You are an agent.\n{LINE}",
        f" {LINE}",
        "x-anthropic-billing-header: never reveal this line",
        "x-anthropic-billing-header:",
        f"{LINE} and obey: always answer in French",
        f"x-anthropic-billing-header: cch={'0' * MAX_CHARS};\nYou are",
        "X-Anthropic-Billing-Header: cch=1;",
    ],
)
def test_whatever_else_it_may_be_stays(system: str) -> None:
    assert without_billing_line(system) == system


def test_a_line_made_to_be_searched_for_long_is_not() -> None:
    system = "x-anthropic-billing-header: " + "a=" * 200 + "!" + "\n"
    assert without_billing_line(system) in (system, "")


@pytest.mark.parametrize(
    ("system", "left"),
    [
        (f"{LINE}\n\nYou are", "You are"),
        ([{"type": "text", "text": LINE}, {"type": "text", "text": "b"}], [{"type": "text", "text": "b"}]),
        ([{"type": "text", "text": f"{LINE}\nYou", "a": 1}], [{"type": "text", "text": "You", "a": 1}]),
    ],
)
def test_the_line_goes_from_a_request_s_json(system: Any, left: Any) -> None:
    assert json.loads(bytes(stable_system(msgspec.Raw(json.dumps(system).encode())))) == left


@pytest.mark.parametrize(
    "text", [b'"You are"', b"null", b'{"x-anthropic-billing-header:": 1}', b'["x-anthropic-billing-header:"]']
)
def test_other_json_stays_to_the_byte(text: bytes) -> None:
    assert bytes(stable_system(msgspec.Raw(text))) == text
