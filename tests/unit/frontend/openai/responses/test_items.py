import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.responses.items import Remembered, named_items, parse_input, seal, unseal
from atomesh.frontend.openai.responses.request import InputItem


def counting() -> Callable[[str], str]:
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers)}"


def parse(*items: dict[str, Any], before: Remembered = Remembered()) -> list[dict[str, Any]]:  # noqa: B008
    return parse_input(msgspec.convert(list(items), list[InputItem]), counting(), before)


def test_a_text_is_a_user_s_message() -> None:
    assert parse_input("hi", counting()) == [
        {
            "id": "msg_0",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        }
    ]
    assert parse_input(None, counting()) == []


def test_items_come_out_in_the_one_shape_in_which_they_are_listed() -> None:
    parsed = parse(
        {"role": "developer", "content": "be brief"},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_x",
            "content": [{"type": "output_text", "text": "a"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "42"}]},
        {"type": "function_call_output", "call_id": "c1", "output": "43"},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "short"}],
            "content": [{"type": "reasoning_text", "text": "long"}],
        },
    )
    texts = [item.get("content", item.get("output")) for item in parsed]
    assert texts == [
        [{"type": "input_text", "text": "be brief"}],
        [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
        [{"type": "refusal", "refusal": "no"}],
        None,
        [{"type": "input_text", "text": "42"}],
        "43",
        [{"type": "reasoning_text", "text": "long"}],
    ]
    assert [item["id"] for item in parsed] == ["msg_0", "msg_x", "msg_1", "fc_2", "fco_3", "fco_4", "rs_5"]
    assert parsed[3] == {
        "id": "fc_2",
        "type": "function_call",
        "status": "completed",
        "call_id": "c1",
        "name": "f",
        "arguments": "{}",
    }
    assert parsed[6]["summary"] == [{"type": "summary_text", "text": "short"}]


@pytest.mark.parametrize(
    ("item", "param", "message"),
    [
        ({"content": "x"}, "input[0].role", "role is missing"),
        ({"role": "tool", "content": "x"}, "input[0].role", "'tool'; it must be one of user, assistant"),
        ({"role": "user"}, "input[0].content", "content is missing"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0]", "type 'input_image'"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0]", "with their text"),
        (
            {"role": "user", "content": [{"type": "refusal", "refusal": "n"}]},
            "input[0].content[0]",
            "assistant's",
        ),
        ({"type": "function_call", "name": "f", "arguments": ""}, "input[0].call_id", "missing"),
        ({"type": "function_call", "call_id": "c", "arguments": ""}, "input[0].name", "missing"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments", "missing"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output", "missing"),
        ({"type": "web_search_call", "id": "w"}, "input[0].type", "'web_search_call'; items may be message"),
        ({"role": "user", "content": "x", "id": ""}, "input[0].id", "0 characters"),
        ({"role": "user", "content": "x", "id": "i" * 129}, "input[0].id", "129 characters"),
        (
            {"type": "reasoning", "encrypted_content": "gAAA"},
            "input[0].encrypted_content",
            "not made by this",
        ),
        ({"type": "reasoning", "encrypted_content": "atomesh-1.%"}, "input[0].encrypted_content", "not made"),
        (
            {"type": "reasoning", "encrypted_content": "atomesh-1._w=="},
            "input[0].encrypted_content",
            "not made",
        ),
    ],
)
def test_what_is_wrong_with_an_item_is_told_with_its_place(
    item: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(item)
    assert caught.value.param == param
    assert message in caught.value.message


@given(st.text())
def test_sealed_reasoning_comes_back_as_it_was(text: str) -> None:
    assert unseal(seal(text), "input[0].encrypted_content") == text


def test_sealed_reasoning_stands_in_for_the_text_alone() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": seal("because")}
    [alone] = parse(sealed)
    assert alone["content"] == [{"type": "reasoning_text", "text": "because"}]
    [both] = parse({**sealed, "content": [{"type": "reasoning_text", "text": "said"}]})
    assert both["content"] == [{"type": "reasoning_text", "text": "said"}]


def test_an_output_needs_its_call() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "1"}
    assert len(parse(call, output)) == 2
    assert len(parse(output, before=Remembered(parse(call)))) == 1
    with pytest.raises(InvalidRequestError) as caught:
        parse(output, call)
    assert caught.value.param == "input[0].call_id"


def test_a_reference_stands_for_a_kept_item() -> None:
    [kept] = parse({"role": "assistant", "content": "said"})
    asked = [
        {"id": kept["id"]},
        {"type": "item_reference", "id": kept["id"]},
        {"role": "user", "content": "x"},
    ]
    assert named_items(msgspec.convert(asked, list[InputItem])) == [kept["id"]] * 2
    assert parse(*asked, before=Remembered(named={kept["id"]: kept}))[:2] == [kept, kept]
    for item, param in (({"id": "msg_none"}, "input[0].id"), ({"type": "item_reference"}, "input[0].id")):
        with pytest.raises(InvalidRequestError) as caught:
            parse(item)
        assert caught.value.param == param
    with pytest.raises(InvalidRequestError, match="1001 references to items; the limit is 1000"):
        named_items([InputItem(id="a")] * 1001)
    assert named_items("text") == named_items(None) == []
