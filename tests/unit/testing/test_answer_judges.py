"""The judges of tests/conformance can say no: what is JSON, what may become it, what a schema admits."""

from typing import Any

import pytest

from atomesh.testing.json_prefix import NotJsonError, is_whole_json
from atomesh.testing.schema_judge import faults_of

WHOLE = '{"a": [1, -2.5e+3, true, {"b\\"": null}], "c": {}, "d": []}'
NO_JSON = [
    "[1,2]",
    "{1",
    '{"a" :',
    "[,",
    "[1}",
    "01",
    "nul1",
    '{"a": 1,}',
    '"a\n',
    "1 ",
    "[1]]",
    '{"a": 1, 2',
]


def test_every_beginning_may_become_json_and_only_the_end_is_whole() -> None:
    assert [end for end in range(len(WHOLE) + 1) if is_whole_json(WHOLE[:end])] == [len(WHOLE)]


@pytest.mark.parametrize("text", ["0", "-1.5E+3", '"\\u00e9"', "null", "[]"])
def test_any_value_is_whole(text: str) -> None:
    assert is_whole_json(text)


@pytest.mark.parametrize("text", NO_JSON)
def test_what_nothing_can_help_is_refused(text: str) -> None:
    with pytest.raises(NotJsonError):
        is_whole_json(text)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"multipleOf": 0.1}, "0.3", "0.35"),
        ({"const": 9007199254740993}, "9007199254740993", "9007199254740992"),
        ({"pattern": "^a+$"}, '"aa"', '"ab"'),
        ({"format": "date"}, '"2024-02-29"', '"2023-02-29"'),
        ({"format": "date-time"}, '"2024-02-29T23:59:59Z"', '"2024-02-29T24:00:01Z"'),
        ({"format": "duration"}, '"P1DT2H"', '"P1DT"'),
        ({"format": "hostname"}, '"a.b-c"', '"a-.b"'),
        ({"format": "email"}, '"a.b@c"', '"a..b@c"'),
        ({"format": "ipv4"}, '"1.2.3.4"', '"1.2.3.256"'),
        ({"format": "uri"}, '"a:b"', '"a b:c"'),
        ({"type": "object"}, "{}", "{"),
    ],
)
def test_a_schema_admits_some_and_not_all(schema: dict[str, Any], valid: str, invalid: str) -> None:
    assert faults_of(schema, valid) == []
    assert len(faults_of(schema, invalid)) == 1
