"""Thoughts told apart from answers, as the openai client sees them."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import openai
import pytest

from atomesh.frontend.reasoning.dialects import DIALECTS
from atomesh.frontend.served_model import ServedModel
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.reasoning import ReasoningSpec
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.letters_server import CREATED
from atomesh.testing.scripted_service import Script
from atomesh.testing.thinking_chat_template import ThinkingChatTemplate
from atomesh.testing.wire import ScriptedWire

ASK = [{"role": "user", "content": "Why?"}]
THOUGHT, SAID = "Hm, é.", "So."
TEMPLATE = ThinkingChatTemplate()
OSS_TEMPLATE = ThinkingChatTemplate(opens=False)


@pytest.fixture
def thinker(scripted: ScriptedWire) -> Iterator[ScriptedWire]:
    """`thinker` and `oss` reason, `letters` does not."""
    models = list(scripted.models)
    for name, dialect, template in (("thinker", "think", TEMPLATE), ("oss", "harmony", OSS_TEMPLATE)):
        scripted.models.append(
            ServedModel(
                name,
                cast("Any", ByteTokenizer()),
                cast("Any", template),
                scripted.service,
                CREATED,
                reasoning_dialect=DIALECTS[dialect],
                tool_dialect="harmony" if dialect == "harmony" else "hermes",
            )
        )
    scripted.service.script = says(f"{THOUGHT}\n</think>\n\n{SAID}")
    yield scripted
    scripted.models[:] = models


def says(*texts: str) -> Any:
    """A script: each choice's text, a byte a token, and the end."""
    tokens = [[*text.encode(), END] for text in texts]
    return lambda _request: Script(tokens=tokens)


def ask(thinker: ScriptedWire, model: str = "thinker", **fields: Any) -> Any:
    known = {"n", "max_tokens", "logprobs", "top_logprobs", "stream_options", "reasoning_effort", "stop"}
    known |= {"tools", "tool_choice"}
    extra = {name: fields.pop(name) for name in list(fields) if name not in known}
    stream = extra.pop("stream", False)
    messages = extra.pop("messages", ASK)
    return thinker.client.chat.completions.create(
        model=model, messages=messages, stream=stream, extra_body=extra, **fields
    )


def joined(chunks: Sequence[Any], choice: int = 0) -> dict[str, str]:
    deltas = [each.delta.model_dump() for chunk in chunks for each in chunk.choices if each.index == choice]
    names = ("content", "reasoning", "reasoning_content")
    return {name: "".join(delta.get(name) or "" for delta in deltas) for name in names}


def last_request(thinker: ScriptedWire) -> GenerationRequest:
    return thinker.service.requests[-1]


def test_reasoning_is_beside_the_content_under_both_names(thinker: ScriptedWire) -> None:
    answer = ask(thinker)
    message = answer.choices[0].message
    assert (message.content, message.reasoning, message.reasoning_content) == (SAID, THOUGHT, THOUGHT)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(f"{THOUGHT}\n".encode())
    assert answer.usage.completion_tokens == len(f"{THOUGHT}\n</think>\n\n{SAID}".encode()) + 1


def test_without_reasoning_neither_name_is_there(thinker: ScriptedWire) -> None:
    thinker.service.script = says(SAID)
    message = ask(thinker, chat_template_kwargs={"enable_thinking": False}).choices[0].message.model_dump()
    assert message["content"] == SAID
    assert not {"reasoning", "reasoning_content"} & set(message)


@pytest.mark.parametrize("n", [1, 2])
def test_streams_come_to_the_same(thinker: ScriptedWire, n: int) -> None:
    thinker.service.script = says(*(f"{THOUGHT}{choice}</think>\n{SAID}{choice}" for choice in range(n)))
    chunks = list(ask(thinker, n=n, stream=True, stream_options={"include_usage": True}))
    for choice in range(n):
        assert joined(chunks, choice) == {
            "content": f"{SAID}{choice}",
            "reasoning": f"{THOUGHT}{choice}",
            "reasoning_content": f"{THOUGHT}{choice}",
        }
    for chunk in chunks:
        for each in chunk.choices:
            delta = each.delta.model_dump()
            assert delta.get("reasoning") == delta.get("reasoning_content")
            assert delta.get("reasoning", "") is not None
    whole = ask(thinker, n=n)
    assert [each.message.reasoning for each in whole.choices] == [f"{THOUGHT}{c}" for c in range(n)]
    reasoned = n * len(f"{THOUGHT}0".encode())
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == reasoned
    assert whole.usage.completion_tokens_details.reasoning_tokens == reasoned


def test_logprobs_are_of_thoughts_and_tags_too(thinker: ScriptedWire) -> None:
    text = f"{THOUGHT}\n</think>\n\n{SAID}<|end|>"
    whole = ask(thinker, logprobs=True, top_logprobs=1).choices[0].logprobs.content
    chunks = list(ask(thinker, logprobs=True, top_logprobs=1, stream=True))
    streamed = [entry for chunk in chunks for each in chunk.choices for entry in each.logprobs.content]
    assert bytes(byte for entry in whole for byte in entry.bytes).decode() == text
    assert [entry.bytes for entry in streamed] == [entry.bytes for entry in whole]


def test_cut_within_a_thought_nothing_is_said(thinker: ScriptedWire) -> None:
    answer = ask(thinker, max_tokens=4)
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.reasoning, choice.finish_reason) == ("", "Hm, ", "length")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 4
    assert joined(list(ask(thinker, max_tokens=4, stream=True)))["content"] == ""


def test_stop_strings_hold_for_thoughts_too(thinker: ScriptedWire) -> None:
    choice = ask(thinker, stop=["m,"]).choices[0]
    assert (choice.message.content, choice.message.reasoning, choice.finish_reason) == ("", "H", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_that_are_not_wanted_are_counted_and_not_told(thinker: ScriptedWire, stream: bool) -> None:
    if stream:
        chunks = list(
            ask(thinker, include_reasoning=False, stream=True, stream_options={"include_usage": True})
        )
        assert joined(chunks) == {"content": SAID, "reasoning": "", "reasoning_content": ""}
        usage = chunks[-1].usage
    else:
        answer = ask(thinker, include_reasoning=False)
        assert "reasoning" not in answer.choices[0].message.model_dump()
        usage = answer.usage
    assert usage.completion_tokens_details.reasoning_tokens == 8


def test_earlier_thoughts_go_to_the_template(thinker: ScriptedWire) -> None:
    for name in ("reasoning", "reasoning_content"):
        told = {"role": "assistant", "content": "c", name: "r"}
        ask(thinker, messages=[*ASK, told, *ASK])
        assert TEMPLATE.seen["messages"][1] == {
            "role": "assistant",
            "content": "c",
            "reasoning": "r",
            "reasoning_content": "r",
        }


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        (
            {"reasoning_effort": "high"},
            {"reasoning_effort": "high", "enable_thinking": True, "thinking": True},
        ),
        (
            {"reasoning_effort": "none"},
            {"reasoning_effort": "none", "enable_thinking": False, "thinking": False},
        ),
        ({"chat_template_kwargs": {"thinking": False}}, {"enable_thinking": False, "thinking": False}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max"}},
            {"reasoning_effort": "max", "enable_thinking": True, "thinking": True},
        ),
        ({}, {}),
    ],
)
def test_the_template_hears_of_the_effort(
    thinker: ScriptedWire, fields: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    ask(thinker, **fields)
    assert TEMPLATE.seen["kwargs"] == kwargs


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"thinking_token_budget": -1}, None),
        ({"thinking_token_budget": 5}, 5),
        ({"thinking_token_budget": 0}, 0),
        ({"reasoning_effort": "none"}, None),  # the prompt has ended the thoughts
        ({"chat_template_kwargs": {"enable_thinking": False}, "thinking_token_budget": 5}, None),
    ],
)
def test_the_engine_is_told_of_the_budget(
    thinker: ScriptedWire, fields: dict[str, Any], expected: int | None
) -> None:
    ask(thinker, **fields)
    spec = last_request(thinker).sampling.reasoning
    if expected is None:
        assert spec is None
    else:
        assert spec == ReasoningSpec(
            start=tuple(b"<think>"), end=tuple(b"</think>"), begins_inside=True, max_tokens=expected
        )


def test_a_model_that_does_not_reason_keeps_any_budget(thinker: ScriptedWire) -> None:
    thinker.service.script = says(SAID)
    answer = ask(thinker, "letters", thinking_token_budget=5, reasoning_effort="none")
    assert answer.choices[0].message.content == SAID
    assert last_request(thinker).sampling.reasoning is None


@pytest.mark.parametrize(
    ("model", "fields", "param", "words"),
    [
        ("letters", {"reasoning_effort": "low"}, "reasoning_effort", "this model does not reason"),
        ("thinker", {"reasoning_effort": "most"}, "reasoning_effort", "one of none, minimal, low, medium"),
        ("thinker", {"thinking_token_budget": -2}, "thinking_token_budget", "must lie in"),
        ("thinker", {"include_reasoning": False, "logprobs": True}, "logprobs", "would tell the reasoning"),
        ("thinker", {"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools", "allowed are"),
        (
            "thinker",
            {"response_format": {"type": "json_object"}},
            "reasoning_effort",
            "ends with words, not with one token",
        ),
    ],
)
def test_what_cannot_be_obeyed_is_refused(
    thinker: ScriptedWire, model: str, fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as refusal:
        ask(thinker, model, **fields)
    assert refusal.value.param == param


def test_completions_know_no_reasoning(thinker: ScriptedWire) -> None:
    for name, value in (
        ("reasoning_effort", "low"),
        ("thinking_token_budget", 5),
        ("include_reasoning", False),
    ):
        with pytest.raises(openai.BadRequestError, match="belongs to /v1/chat/completions"):
            thinker.client.completions.create(model="thinker", prompt="a", extra_body={name: value})


def test_a_grammar_holds_from_the_start_where_nothing_is_thought(thinker: ScriptedWire) -> None:
    thinker.service.script = says("{}")
    ask(thinker, response_format={"type": "json_object"}, reasoning_effort="none")
    sampling = last_request(thinker).sampling
    assert sampling.reasoning is None
    assert sampling.grammar is not None
    assert sampling.grammar.begins_after == ()


def test_harmony_is_read_whole_and_streamed(thinker: ScriptedWire) -> None:
    thinker.service.script = says(
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{SAID}"
    )
    message = ask(thinker, "oss", reasoning_effort="minimal").choices[0].message
    assert (message.content, message.reasoning) == (SAID, THOUGHT)
    assert OSS_TEMPLATE.seen["kwargs"] == {"reasoning_effort": "low"}
    chunks = list(ask(thinker, "oss", stream=True))
    assert joined(chunks) == {"content": SAID, "reasoning": THOUGHT, "reasoning_content": THOUGHT}


FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
CALLS = (
    f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"q": 1}<|call|><|start|>assistant'
    " to=functions.find<|channel|>commentary json<|message|>{}"
)


@pytest.mark.parametrize("stream", [False, True])
def test_harmony_calls_tools(thinker: ScriptedWire, stream: bool) -> None:
    thinker.service.script = says(CALLS)
    answer = ask(thinker, "oss", tools=[FIND], stream=stream)
    if stream:
        chunks = list(answer)
        assert joined(chunks) == {"content": "", "reasoning": THOUGHT, "reasoning_content": THOUGHT}
        deltas = [call for chunk in chunks for each in chunk.choices for call in each.delta.tool_calls or []]
        calls = [
            (
                "".join(one.function.name or "" for one in deltas if one.index == index),
                "".join(one.function.arguments for one in deltas if one.index == index),
            )
            for index in range(2)
        ]
        finish = chunks[-1].choices[0].finish_reason
    else:
        message = answer.choices[0].message
        assert (message.content, message.reasoning) == (None, THOUGHT)
        calls = [(one.function.name, one.function.arguments) for one in message.tool_calls]
        finish = answer.choices[0].finish_reason
    assert calls == [("find", '{"q": 1}'), ("find", "{}")]
    assert finish == "tool_calls"
    assert OSS_TEMPLATE.seen["tools"] == [FIND]


def test_harmony_is_held_to_calls_after_its_analysis(thinker: ScriptedWire) -> None:
    thinker.service.script = says(CALLS)
    ask(thinker, "oss", tools=[FIND], tool_choice="required", thinking_token_budget=4)
    sampling = last_request(thinker).sampling
    assert sampling.grammar is not None
    assert sampling.grammar.begins_after == (END,)
    assert sampling.reasoning == ReasoningSpec(
        start=tuple(b"<|channel|>analysis<|message|>"), end=(END,), is_required=True, max_tokens=4
    )


def test_harmony_is_held_to_its_form_in_its_final_message(thinker: ScriptedWire) -> None:
    thinker.service.script = says(CALLS)
    ask(thinker, "oss", response_format={"type": "json_object"})
    sampling = last_request(thinker).sampling
    assert sampling.reasoning is not None
    assert sampling.grammar is not None
    assert sampling.reasoning.is_required
    assert sampling.grammar.begins_after == (END, *sampling.reasoning.then)
    assert ByteTokenizer().decode(sampling.reasoning.then) == "<|start|>assistant<|channel|>final<|message|>"


def test_harmony_ends_its_analysis_and_answers_when_the_budget_is_spent(thinker: ScriptedWire) -> None:
    ask(thinker, "oss", thinking_token_budget=9)
    spec = last_request(thinker).sampling.reasoning
    assert spec is not None
    assert bytes(spec.start) == b"<|channel|>analysis<|message|>"
    assert (spec.end, spec.max_tokens, spec.begins_inside) == ((END,), 9, False)
    assert ByteTokenizer().decode(spec.then) == "<|start|>assistant<|channel|>final<|message|>"
