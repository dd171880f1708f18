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
        {"response_format": {"type": "text"}},
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
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "n" * 200, "schema": {}}}),
        ("response_format", "text"),
        ("response_format", {}),
        ("modalities", ["text", "audio"]),
        ("structured_outputs", {}),
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


def test_constrained_output_is_refused_without_naming_what_is_refused_as_well() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        refuse_fields(fields(guided_json={"type": "object"}))
    assert caught.value.message == (
        "guided_json asks for constrained output, which this version does not serve; remove it"
    )


def test_tools_are_refused_beside_another_choice() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        refuse_fields(fields(tools=TOOLS, tool_choice="auto"))
    assert caught.value.param == "tools"


@pytest.mark.parametrize("raw", [b'"\\ud800"', b"1e999"])
def test_what_cannot_be_decoded_is_no_default(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="suffix is not supported"):
        refuse_fields({"suffix": msgspec.Raw(raw)})
