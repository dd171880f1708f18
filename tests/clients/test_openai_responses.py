"""Responses by the openai client: tools, reasoning and structured answers, conversations on both shapes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, cast

import msgspec.structs
import openai
import pydantic
import pytest
from openai.types.responses import Response

from atomesh.frontend.reasoning.dialects import DIALECTS
from atomesh.frontend.served_model import ServedModel
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.letters_server import CREATED, DESCRIPTION
from atomesh.testing.scripted_service import ScriptedService
from atomesh.testing.thinking_chat_template import ThinkingChatTemplate
from atomesh.testing.wire import ScriptedWire, Wire

LONG = msgspec.structs.replace(DESCRIPTION, name="thinker", max_model_len=16_384)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "weather", "description": "It looks.", "parameters": PARAMETERS}
CLOCK: Any = {"type": "function", "name": "clock"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
THOUGHT = "Hm, é."


class Verdict(pydantic.BaseModel):
    colour: Literal["red", "green"]
    is_warm: bool


@pytest.fixture
def thinker(scripted: ScriptedWire) -> Iterator[ScriptedWire]:
    """A model that reasons, and calls tools as Hermes does."""
    models, service = list(scripted.models), ScriptedService(LONG, goes_ahead=True)
    model = ServedModel(
        LONG.name,
        cast("Any", ByteTokenizer()),
        cast("Any", ThinkingChatTemplate()),
        service,
        CREATED,
        reasoning_dialect=DIALECTS["think"],
        tool_dialect="hermes",
    )
    scripted.models[:] = [model]
    wire = replace(scripted, service=service, model=LONG.name)
    wire.say(f"{THOUGHT}</think>\n\nI look.\n{CALL}\n{CALL}")
    yield wire
    scripted.models[:] = models
    assert service.running == set()


def ask(wire: Wire, **fields: Any) -> Any:
    return wire.client.responses.create(**{"model": wire.model, "input": "Weather?", **fields})


def prompt_of(wire: ScriptedWire) -> str:
    return bytes(i for i in wire.service.requests[-1].prompt_token_ids if i < 256).decode()


def told(items: Any) -> list[tuple[str, str]]:
    """Each item's type and text."""
    return [
        (item.type, item.arguments if item.type == "function_call" else item.content[0].text)
        for item in items
    ]


OUTPUT = [
    ("reasoning", THOUGHT),
    ("message", "I look."),
    ("function_call", '{"city": "Zürich"}'),
    ("function_call", '{"city": "Zürich"}'),
]


def test_reasoning_text_and_calls_are_items(thinker: ScriptedWire) -> None:
    answer = ask(thinker, tools=[WEATHER, CLOCK])
    Response.model_validate(answer.to_dict())
    assert told(answer.output) == OUTPUT
    assert [item.status for item in answer.output] == ["completed"] * 4
    calls = answer.output[2:]
    assert [call.name for call in calls] == ["weather", "weather"]
    assert len({call.call_id for call in calls} | {item.id for item in answer.output}) == 6
    assert answer.usage.output_tokens_details.reasoning_tokens >= len(THOUGHT.encode())
    assert answer.tools[0].to_dict() == {**WEATHER, "strict": None}
    template = cast("ThinkingChatTemplate", thinker.models[0].chat_template)
    assert [tool["function"]["name"] for tool in template.seen["tools"]] == ["weather", "clock"]


def test_their_events_join_to_the_items(thinker: ScriptedWire) -> None:
    events = list(ask(thinker, tools=[WEATHER], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    joined: dict[int, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            joined[event.output_index] = joined.get(event.output_index, "") + event.delta
    assert list(joined.values()) == [text for _, text in OUTPUT]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output
    assert told(done) == OUTPUT
    kinds = list(dict.fromkeys(event.type.removeprefix("response.") for event in events))
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_text.delta",
        "output_text.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ]


def test_the_stream_helper_follows_calls(thinker: ScriptedWire) -> None:
    with thinker.client.responses.stream(model=thinker.model, input="Weather?", tools=[WEATHER]) as stream:
        snapshots = [e.snapshot for e in stream if e.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == OUTPUT[2][1]
    assert told(final.output) == OUTPUT


@pytest.mark.parametrize("stored", [True, False])
def test_a_call_s_output_goes_on_with_the_conversation(thinker: ScriptedWire, stored: bool) -> None:
    first = ask(thinker, tools=[WEATHER], store=stored, include=["reasoning.encrypted_content"])
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{number} degrees"}
        for number, call in enumerate(first.output[2:])
    ]
    thinker.say("</think>\n\nCold.")
    if stored:
        second = ask(thinker, tools=[WEATHER], input=outputs, previous_response_id=first.id)
    else:
        before = [{"role": "user", "content": "Weather?"}, *(item.to_dict() for item in first.output)]
        second = ask(thinker, tools=[WEATHER], input=[*before, *outputs], store=False)
    assert second.output_text == "Cold."
    prompt = prompt_of(thinker)
    places = [prompt.index(text) for text in ("Weather?", "I look.", "0 degrees", "1 degrees")]
    assert places == sorted(places)
    with pytest.raises(openai.BadRequestError, match="there is no function_call") as caught:
        ask(thinker, input=outputs)
    assert caught.value.param == "input[0].call_id"


def test_sealed_reasoning_alone_comes_back_to_the_model(thinker: ScriptedWire) -> None:
    first = ask(thinker, include=["reasoning.encrypted_content"], store=False)
    sealed = first.output[0].encrypted_content
    shut = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
    asked = [{"role": "user", "content": "1"}, shut, {"role": "assistant", "content": "2"}]
    said = {**shut, "encrypted_content": None, "content": [{"type": "reasoning_text", "text": THOUGHT}]}
    ask(thinker, input=[*asked, {"role": "user", "content": "3"}])
    as_sealed = prompt_of(thinker)
    ask(thinker, input=[asked[0], said, asked[2], {"role": "user", "content": "3"}])
    assert prompt_of(thinker) == as_sealed


@pytest.mark.parametrize(
    ("choice", "begins"),
    [
        ("required", True),
        ({"type": "function", "name": "clock"}, True),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
            True,
        ),
        ("auto", False),
        ("none", False),
    ],
)
def test_a_tool_choice_becomes_a_grammar(thinker: ScriptedWire, choice: Any, begins: bool) -> None:
    answer = ask(thinker, tools=[WEATHER, CLOCK], tool_choice=choice, reasoning={"effort": "none"})
    grammar = thinker.service.requests[-1].sampling.grammar
    assert (grammar is not None) == begins
    if grammar is not None and choice != "required":
        assert "clock" in grammar.source
        assert "weather" not in grammar.source
    assert json.loads(answer.to_json())["tool_choice"] == choice


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**WEATHER, "name": "no spaces"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "clock"}}, "tool_choice"),
        ({"reasoning": {"effort": "boundless"}}, "reasoning.effort"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "odd"}}}},
            "text.format",
        ),
    ],
)
def test_a_refusal_names_the_response_s_field(thinker: ScriptedWire, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(thinker, **fields)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)
    assert "function." not in caught.value.message


def test_an_answer_on_both_shapes(stack: Wire) -> None:
    asked = {"input": "Say hello.", "max_output_tokens": 12, "temperature": 0}
    whole = ask(stack, **asked)
    Response.model_validate(whole.to_dict())
    events = list(ask(stack, **asked, stream=True))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text == events[-1].response.output_text
    assert whole.usage.input_tokens == events[-1].response.usage.input_tokens
    counted = stack.client.responses.input_tokens.count(model=stack.model, input="Say hello.")
    assert counted.input_tokens == whole.usage.input_tokens
    assert stack.client.responses.retrieve(whole.id) == whole


def test_a_conversation_hits_its_own_prefix(stack: Wire) -> None:
    first = ask(stack, input="Tell me a long story of a fox. " * 8, max_output_tokens=40, temperature=0)
    second = ask(stack, input="Go on.", previous_response_id=first.id, max_output_tokens=4, temperature=0)
    before = first.usage.input_tokens
    assert second.usage.input_tokens > before + 30
    assert second.usage.input_tokens_details.cached_tokens >= before // 32 * 32


def test_a_parsed_answer_on_both_shapes(stack: Wire) -> None:
    answer = stack.client.responses.parse(
        model=stack.model, input="What of fire?", text_format=Verdict, max_output_tokens=60, temperature=0
    )
    assert answer.status == "completed"
    assert isinstance(answer.output_parsed, Verdict)
    with stack.client.responses.stream(
        model=stack.model, input="What of fire?", text_format=Verdict, max_output_tokens=60, temperature=0
    ) as stream:
        assert stream.get_final_response().output_parsed == answer.output_parsed


def test_a_required_call_on_both_shapes(stack: Wire) -> None:
    asked = {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 80, "temperature": 0}
    answer = ask(stack, input="How is the weather in Rome?", **asked)
    [call, *_] = answer.output
    assert (call.type, call.name) == ("function_call", "weather")
    assert isinstance(json.loads(call.arguments)["city"], str)
    *_, last = ask(stack, input="How is the weather in Rome?", **asked, stream=True)
    assert [(c.name, c.arguments) for c in last.response.output] == [
        (c.name, c.arguments) for c in answer.output
    ]


def test_a_background_answer_on_both_shapes(stack: Wire) -> None:
    asked = {"input": "Say hello.", "max_output_tokens": 12, "temperature": 0}
    queued = ask(stack, **asked, background=True)
    events = list(stack.client.responses.retrieve(queued.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == ask(stack, **asked).output_text
