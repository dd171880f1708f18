"""Tools as the openai client sees them: what is asked, told to the model, called, streamed and refused."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import openai
import pytest
from msgspec import structs
from openai.types.chat import ChatCompletionMessage

from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.tool_calls.registry import load_dialect
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.letters_server import CREATED, DESCRIPTION
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.scripted_service import Script, ScriptedService
from atomesh.testing.tool_transcripts import TOOLS, TRANSCRIPTS, Transcript
from atomesh.testing.wire import ScriptedWire

LONG: ModelDescription = structs.replace(DESCRIPTION, name="tools", max_model_len=16_384, vocab_size=262)
ASK: Any = [{"role": "user", "content": "Weather?"}]
FUNCTIONS: Any = [
    {"type": "function", "function": {"name": name, "description": f"It does {name}.", "parameters": schema}}
    for name, schema in TOOLS.items()
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
OPENING = 259


class MarkingTokenizer(ByteTokenizer):
    """`[TOOL_CALLS]` is a special token, too."""

    vocab_size = 262
    special_tokens = MappingProxyType(
        {**ByteTokenizer.special_tokens, "[TOOL_CALLS]": OPENING, "[ARGS]": 260, "[CALL_ID]": 261}
    )

    def __init__(self) -> None:
        super().__init__()
        self._names |= {token_id: name.encode() for name, token_id in self.special_tokens.items()}


@pytest.fixture
def tooled(scripted: ScriptedWire) -> Iterator[ScriptedWire]:
    """A model for each dialect, of its name; `special` is Mistral's, with special tokens for marks."""
    models, service = list(scripted.models), ScriptedService(LONG, goes_ahead=True)
    for dialect in {one.dialect for one in TRANSCRIPTS}:
        scripted.models.append(_model(dialect, ByteTokenizer(), service, dialect))
    scripted.models.append(_model("special", MarkingTokenizer(), service, "mistral"))
    yield replace(scripted, service=service)
    scripted.models[:] = models
    assert service.running == set()


def _model(name: str, tokenizer: ByteTokenizer, service: ScriptedService, dialect: str) -> ServedModel:
    template = cast("Any", PlainChatTemplate())
    return ServedModel(name, cast("Any", tokenizer), template, service, CREATED, tool_dialect=dialect)


def ask(tooled: ScriptedWire, model: str = "hermes", **fields: Any) -> Any:
    asked = {"messages": ASK, "tools": FUNCTIONS, **fields}
    return tooled.client.chat.completions.create(model=model, **asked)


def prompt_of(tooled: ScriptedWire) -> str:
    [request] = tooled.service.requests
    return bytes(i for i in request.prompt_token_ids if i < 256).decode()


def grammar_of(tooled: ScriptedWire) -> str:
    [request] = tooled.service.requests
    assert request.sampling.grammar is not None
    assert request.sampling.grammar.kind == "lark"
    return request.sampling.grammar.source


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]


def joined(chunks: list[Any]) -> tuple[str, list[tuple[str, str]], str | None]:
    """Content, calls and finish reason of one streamed choice."""
    content, calls = "", []
    for chunk in chunks:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id is not None:
                assert call.type == "function"
                assert call.index == len(calls)
                calls.append((call.function.name, ""))
            name, arguments = calls[call.index]
            calls[call.index] = (name, arguments + call.function.arguments)
    return content, calls, chunks[-1].choices[0].finish_reason


def test_a_call_as_the_api_has_it(tooled: ScriptedWire) -> None:
    tooled.say(f"I look.\n{CALL}")
    answer = ask(tooled)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == (
        "function",
        "weather",
        '{"city": "Zürich"}',
    )
    assert call.id.startswith("call_")
    assert len(call.id) == 29


def test_a_call_alone_has_no_content(tooled: ScriptedWire) -> None:
    tooled.say(CALL)
    assert ask(tooled).choices[0].message.content is None


@pytest.mark.parametrize("transcript", TRANSCRIPTS[::3], ids=lambda t: f"{t.dialect}-{t.text[:20]!r}")
def test_a_stream_says_what_the_whole_answer_says(tooled: ScriptedWire, transcript: Transcript) -> None:
    tooled.say(transcript.text)
    [choice] = ask(tooled, transcript.dialect).choices
    whole = (choice.message.content or "", calls_of(choice.message), choice.finish_reason)
    assert joined(list(ask(tooled, transcript.dialect, stream=True))) == whole
    assert whole[0] == transcript.content
    assert [name for name, _ in whole[1]] == [name for name, _ in transcript.calls]
    can_run = transcript.calls and not isinstance(transcript.calls[-1][1], str)  # cut amid its arguments
    assert whole[2] == ("tool_calls" if can_run else "stop")


def test_each_choice_has_its_own_calls_and_ids(tooled: ScriptedWire) -> None:
    tooled.say(CALL * 2, "No call.", f"{CALL}")
    choices = ask(tooled, n=3, temperature=1.0).choices
    assert [len(choice.message.tool_calls or []) for choice in choices] == [2, 0, 1]
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    ids = [call.id for choice in choices for call in choice.message.tool_calls or []]
    assert len(set(ids)) == 3


def test_a_call_cut_off_by_the_limit_finishes_by_length(tooled: ScriptedWire) -> None:
    tooled.say(CALL)
    [choice] = ask(tooled, max_tokens=60).choices
    assert choice.finish_reason == "length"
    [(name, arguments)] = calls_of(choice.message)
    assert name == "weather"
    assert '{"city": "Zürich"}'.startswith(arguments)


def test_log_probabilities_come_for_every_token_of_a_call(tooled: ScriptedWire) -> None:
    tooled.say(CALL)
    entries = ask(tooled, logprobs=True, top_logprobs=1).choices[0].logprobs.content
    assert bytes(byte for entry in entries[:-1] for byte in entry.bytes) == CALL.encode()
    chunks = [chunk.choices[0].logprobs for chunk in ask(tooled, logprobs=True, stream=True)]
    told = [entry.token for each in chunks if each is not None for entry in each.content]
    assert told == [entry.token for entry in entries]


@pytest.mark.parametrize(
    ("dialect", "pattern"), [("mistral", r"[0-9a-zA-Z]{9}"), ("kimi_k2", r"functions\.time\.now:0")]
)
def test_ids_are_as_the_dialect_has_them(tooled: ScriptedWire, dialect: str, pattern: str) -> None:
    tooled.say(load_dialect(dialect).spelling.show([("time.now", {})]))
    [call] = ask(tooled, dialect).choices[0].message.tool_calls
    assert re.fullmatch(pattern, call.id)


def test_marks_that_are_special_tokens_are_seen_by_the_parser_alone(tooled: ScriptedWire) -> None:
    tooled.service.script = lambda _: Script(tokens=[[*b"Hm", 260, OPENING, *b'weather{"city": "x"}', END]])
    message = ask(tooled, "special").choices[0].message
    assert (message.content, calls_of(message)) == ("Hm", [("weather", '{"city": "x"}')])
    tooled.service.script = lambda _: Script(tokens=[[*b"Hm", OPENING, *b"nobody{}", END]])
    assert ask(tooled, "special").choices[0].message.content == "Hmnobody{}"


def test_the_model_is_told_of_tools_in_words_where_its_template_has_none(tooled: ScriptedWire) -> None:
    tooled.say("Hello.")
    ask(tooled, messages=[{"role": "system", "content": "Be brief."}, *ASK])
    prompt = prompt_of(tooled)
    assert prompt.startswith("system\nBe brief.\n\nYou can call functions")
    assert json.dumps(FUNCTIONS[0]["function"]) in prompt
    assert '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>' in prompt


def test_calls_and_results_of_earlier_turns_are_told_in_the_dialect(tooled: ScriptedWire) -> None:
    tooled.say(CALL, "")
    message = ask(tooled).choices[0].message
    tooled.service.requests.clear()
    results = [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sun <|end|>"}]
    ask(tooled, messages=[*ASK, message, *results])
    prompt = prompt_of(tooled)
    assert f"assistant\n{CALL}user\n<tool_response>\nSun <|end|>\n</tool_response>assistant\n" in prompt


def test_none_tells_the_model_nothing_and_reads_no_call(tooled: ScriptedWire) -> None:
    tooled.say(CALL)
    [choice] = ask(tooled, tool_choice="none").choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL, None, "stop")
    assert "weather" not in prompt_of(tooled)


def test_auto_holds_the_model_to_nothing(tooled: ScriptedWire) -> None:
    tooled.say("Hello.")
    ask(tooled, tool_choice="auto")
    assert tooled.service.requests[0].sampling.grammar is None


def test_required_holds_the_model_to_calls_of_all_functions(tooled: ScriptedWire) -> None:
    tooled.say(CALL)
    ask(tooled, tool_choice="required")
    source = grammar_of(tooled)
    assert all(json.dumps(f'{{"name": "{name}", "arguments": ') in source for name in TOOLS)
    assert ")*" in source


def test_a_named_function_is_the_only_one_and_called_once(tooled: ScriptedWire) -> None:
    tooled.say(CALL)
    ask(tooled, tool_choice={"type": "function", "function": {"name": "time.now"}})
    source = grammar_of(tooled)
    assert "time.now" in source
    assert "weather" not in source
    assert ")*" not in source
    assert "weather" in prompt_of(tooled)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_ones_and_all_are_told(tooled: ScriptedWire, mode: str) -> None:
    tooled.say(CALL)
    allowed = [{"type": "function", "function": {"name": "time.now"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    message = ask(tooled, tool_choice=choice).choices[0].message
    assert (message.tool_calls, message.content) == (None, CALL)
    assert "weather" in prompt_of(tooled)
    if mode == "required":
        assert "weather" not in grammar_of(tooled)


def test_one_call_at_most_where_they_are_not_to_be_parallel(tooled: ScriptedWire) -> None:
    tooled.say(CALL * 2)
    ask(tooled, tool_choice="required", parallel_tool_calls=False)
    assert ")*" not in grammar_of(tooled)
    assert len(ask(tooled, parallel_tool_calls=False).choices[0].message.tool_calls) == 1


def test_json_or_calls_where_both_may_come(tooled: ScriptedWire) -> None:
    tooled.say('{"a": 1}')
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    assert ask(tooled, response_format=form).choices[0].message.content == '{"a": 1}'
    assert re.match(r"start: *part_\d+ \| *part_\d+ ", grammar_of(tooled))


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "required", "tools": []}, "tool_choice", "there are no tools"),
    ({"tool_choice": "sometimes"}, "tool_choice", "it must be 'none', 'auto', 'required'"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
        "'f', which is not among",
    ),
    ({"tool_choice": {"type": "allowed_tools", "mode": "maybe"}}, "tool_choice.mode", "must be 'auto' or"),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        "tool_choice.tools",
        "at least one",
    ),
    ({"tools": [*FUNCTIONS, FUNCTIONS[0]]}, "tools[3].function.name", "names must differ"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "must be 'function'"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "1 to 64 of"),
    ({"tools": FUNCTIONS * 43}, "tools", "the limit is 128"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 300_000}}]},
        "tools",
        "the limit is 262144",
    ),
    ({"functions": [{"name": "f"}]}, "functions", "is an older name; send tools"),
    ({"function_call": {"name": "f"}}, "function_call", "send tool_choice"),
    (
        {"tool_choice": "required", "response_format": {"type": "json_object"}},
        "tool_choice",
        "held to another form",
    ),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD, ids=lambda value: str(value)[:30])
def test_what_is_refused(tooled: ScriptedWire, fields: dict[str, Any], param: str, words: str) -> None:
    extra = {name: fields[name] for name in ("functions", "function_call") if name in fields}
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        ask(tooled, extra_body=extra, **{name: fields[name] for name in fields if name not in extra})
    assert refused.value.param == param
    assert tooled.service.requests == []


SCHEMAS: list[tuple[Any, str]] = [
    ({"type": "string"}, ".type"),
    ({"properties": {"a": 5}}, ".properties.a"),
    ({"properties": {"a": {"type": "text"}}}, ".properties.a.type"),
    ({"properties": {"a": {"items": {"anyOf": []}}}}, ".properties.a.items.anyOf"),
    ({"required": "a"}, ".required"),
    ({"$defs": {"d": {"enum": []}}}, ".$defs.d.enum"),
]


@pytest.mark.parametrize(("schema", "path"), SCHEMAS)
def test_parameters_that_are_no_schema_are_refused_at_their_path(
    tooled: ScriptedWire, schema: Any, path: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(tooled, tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert refused.value.param == f"tools[0].function.parameters{path}"


def test_tokenize_counts_tools_too(tooled: ScriptedWire) -> None:
    tooled.say("Hello.")
    used = ask(tooled).usage.prompt_tokens
    body = {"model": "hermes", "messages": ASK, "tools": FUNCTIONS}
    url = f"{tooled.url}/tokenize"
    counted = tooled.client.post(url, body=body, cast_to=cast("Any", object))
    assert counted["count"] == used
