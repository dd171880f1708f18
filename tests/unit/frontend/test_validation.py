import msgspec
import pytest

from atomesh.errors import InvalidRequestError
from atomesh.frontend.validation import refuse_fields

TOOLS = [{"type": "function", "function": {"name": "f", "description": "long " * 40}}]


def fields(**values: object) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


@pytest.mark.parametrize(
    "values",
    [
        {"tools": []},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        {"modalities": ["text"]},
        {"use_beam_search": False},
        {"suffix": ""},
        {"guided_json": None, "structured_outputs": None, "response_format": None, "tools": None},
        {"unknown": {"a": 1}},
    ],
)
def test_what_asks_for_nothing_is_taken(values: dict[str, object]) -> None:
    refuse_fields(fields(**values))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", TOOLS),
        ("tools", {}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("tool_choice", "none at all"),
        ("modalities", ["text", "audio"]),
        ("guided_json", {}),
        ("guided_choice", []),
        ("guided_regex", ""),
        ("guided_json_object", False),
        ("use_beam_search", True),
        ("kv_transfer_params", {}),
        ("suffix", "b"),
    ],
)
def test_presence_counts_not_truth(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        refuse_fields(fields(**{name: value}))
    assert caught.value.param == name
    assert caught.value.message.startswith(f"{name} ")


def test_the_older_names_of_structured_output_are_refused_with_the_newer_ones() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        refuse_fields(fields(guided_json={"type": "object"}))
    assert caught.value.message == (
        "guided_json is an older name; ask with structured_outputs or response_format"
    )


def test_tools_are_refused_beside_another_choice() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        refuse_fields(fields(tools=TOOLS, tool_choice="auto"))
    assert caught.value.param == "tools"


@pytest.mark.parametrize("raw", [b'"\\ud800"', b"1e999"])
def test_what_cannot_be_decoded_is_no_default(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="suffix belongs to /v1/completions"):
        refuse_fields({"suffix": msgspec.Raw(raw)})
