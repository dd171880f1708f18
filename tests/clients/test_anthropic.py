"""POST /v1/messages and its like through the anthropic client."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import anthropic
import msgspec
import pytest
from pydantic import BaseModel

from atomesh.errors import (
    AtomeshError,
    AuthenticationError,
    DeadlineExceededError,
    EngineError,
    PermissionDeniedError,
    RateLimitError,
    ServiceUnavailableError,
)
from atomesh.frontend.reasoning.dialects import DIALECTS
from atomesh.testing.byte_tokenizer import END
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire, Wire

HELLO = [{"role": "user", "content": "Say hello to the world."}]
BILLING = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=%s;"
FAULTS: list[tuple[AtomeshError, type[anthropic.APIStatusError], str]] = [
    (AuthenticationError("no key"), anthropic.AuthenticationError, "authentication_error"),
    (PermissionDeniedError("not yours"), anthropic.PermissionDeniedError, "permission_error"),
    (RateLimitError("too much"), anthropic.RateLimitError, "rate_limit_error"),
    (EngineError("lost"), anthropic.InternalServerError, "api_error"),
    (ServiceUnavailableError("none ready"), anthropic.InternalServerError, "overloaded_error"),
    (DeadlineExceededError("too late"), anthropic.InternalServerError, "timeout_error"),
]


@pytest.fixture(scope="module")
def anthropics() -> Iterator[Callable[[str], anthropic.Anthropic]]:
    """One client a server."""
    with ExitStack() as stack:
        yield cache(
            lambda url: stack.enter_context(
                anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60.0)
            )
        )


@pytest.fixture
def claude(scripted: ScriptedWire, anthropics: Callable[[str], anthropic.Anthropic]) -> anthropic.Anthropic:
    """Of the scripted server."""
    return anthropics(scripted.url)


@pytest.fixture
def real(stack: Wire, anthropics: Callable[[str], anthropic.Anthropic]) -> anthropic.Anthropic:
    """Of `atomesh serve`."""
    return anthropics(stack.url)


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "letters", "max_tokens": 64, "messages": HELLO} | fields


def test_a_message(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    scripted.say("Hello.")
    answer = claude.messages.create(**asked(system="Be brief."))
    assert answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", scripted.model)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello."}]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    [request] = scripted.service.requests
    assert bytes(request.prompt_token_ids[1:17]) == b"system\nBe brief."
    assert answer.usage.input_tokens == len(request.prompt_token_ids)
    assert answer.usage.output_tokens == 7
    assert answer.usage.output_tokens_details.thinking_tokens == 0


def test_tokens_from_a_cache_are_no_input_tokens(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    scripted.service.script = lambda _request: Script(tokens=[[*b"Hi", END]], cached_tokens=16)
    whole = claude.messages.create(**asked())
    with claude.messages.stream(**asked()) as stream:
        streamed = stream.get_final_message()
    size = len(scripted.service.requests[0].prompt_token_ids)
    for answer in (whole, streamed):
        assert answer.usage.input_tokens == size - 16
        assert answer.usage.cache_read_input_tokens == 16
        assert answer.usage.cache_creation_input_tokens == 0
        assert answer.usage.output_tokens == 3


def test_named_events_in_their_order(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    scripted.say("Hey")
    events = list(claude.messages.create(**asked(stream=True)))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0].message.content == []
    assert events[0].message.stop_reason is None
    assert [event.delta.text for event in events[2:5]] == ["H", "e", "y"]
    assert events[-2].delta.stop_reason == "end_turn"
    assert events[-2].usage.output_tokens == 4


def test_the_stream_helper_gathers_the_whole_message(
    scripted: ScriptedWire, claude: anthropic.Anthropic
) -> None:
    scripted.say("Hello there.")
    with claude.messages.stream(**asked()) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == "Hello there."
    assert message.content[0].text == text
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 13)


def test_an_answer_without_a_word(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    scripted.say("")
    whole = claude.messages.create(**asked())
    with claude.messages.stream(**asked()) as stream:
        streamed = stream.get_final_message()
    for answer in (whole, streamed):
        assert (answer.content, answer.stop_reason, answer.usage.output_tokens) == ([], "end_turn", 1)


@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "Hel", "max_tokens", None),
        ({"stop_sequences": ["xx", "lo"]}, "Hel", "stop_sequence", "lo"),
        ({}, "Hello", "end_turn", None),
    ],
)
def test_why_an_answer_ends(
    scripted: ScriptedWire,
    claude: anthropic.Anthropic,
    fields: dict[str, Any],
    text: str,
    reason: str,
    sequence: str | None,
) -> None:
    scripted.say("Hello")
    whole = claude.messages.create(**asked(**fields))
    with claude.messages.stream(**asked(**fields)) as stream:
        streamed = stream.get_final_message()
    for answer in (whole, streamed):
        assert answer.content[0].text == text
        assert (answer.stop_reason, answer.stop_sequence) == (reason, sequence)


def test_a_prefilled_answer_goes_on(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    claude.messages.create(**asked(messages=[*HELLO, {"role": "assistant", "content": "The answer is ("}]))
    [request] = scripted.service.requests
    assert bytes(request.prompt_token_ids[-15:]) == b"The answer is ("


def test_prompts_that_differ_in_their_billing_line_alone_are_one(
    scripted: ScriptedWire, claude: anthropic.Anthropic
) -> None:
    for cch in ("eb6c6", "0aaa9"):
        billing = {"type": "text", "text": BILLING % cch}
        claude.messages.create(**asked(system=[billing, {"type": "text", "text": "Be brief."}]))
    first, second = scripted.service.requests
    assert first.prompt_token_ids == second.prompt_token_ids
    assert first.prompt_token_ids[1:17] == list(b"system\nBe brief.")


def test_counted_tokens_are_those_of_the_prompt(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "letters", "messages": HELLO, "system": "Be brief."}
    counted = claude.messages.count_tokens(**fields)
    answer = claude.messages.create(**fields, max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens
    assert len(scripted.service.requests) == 1


def test_the_beta_client_s_path_and_fields_are_taken(
    scripted: ScriptedWire, claude: anthropic.Anthropic
) -> None:
    scripted.say("Hi")
    answer = claude.beta.messages.create(
        **asked(
            betas=["context-management-2025-06-27"],
            context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
            service_tier="auto",
            metadata={"user_id": "someone"},
        )
    )
    assert answer.content[0].text == "Hi"


def test_models_are_listed_as_anthropic_s_client_reads_them(
    scripted: ScriptedWire, claude: anthropic.Anthropic
) -> None:
    listed = list(claude.models.list())
    assert [model.id for model in listed] == [scripted.model, "letters"]
    one = claude.models.retrieve("letters")
    assert (one.type, one.display_name, one.max_input_tokens) == ("model", scripted.model, 512)
    assert one.created_at.year == 2023
    assert [model.id for model in scripted.client.models.list()] == [scripted.model, "letters"]


@pytest.mark.parametrize(("fault", "kind", "word"), FAULTS, ids=[kind for _, _, kind in FAULTS])
def test_a_failure_is_the_client_s_exception(
    scripted: ScriptedWire,
    claude: anthropic.Anthropic,
    fault: AtomeshError,
    kind: type[anthropic.APIStatusError],
    word: str,
) -> None:
    scripted.service.script = lambda _request: Script(error=fault)
    for is_streamed in (False, True):
        with pytest.raises(kind) as caught:
            list(claude.messages.create(**asked(stream=is_streamed)))
        assert caught.value.status_code == fault.status
        assert caught.value.body["type"] == "error"
        assert caught.value.body["error"] == {"type": word, "message": fault.message}
        assert caught.value.request_id == caught.value.body["request_id"]


def test_a_failure_amid_a_stream_is_an_event_and_a_cut(
    scripted: ScriptedWire, claude: anthropic.Anthropic
) -> None:
    fault = ServiceUnavailableError("the worker is gone")
    scripted.service.script = lambda _request: Script(error=fault, fail_after=2)
    seen = []
    with pytest.raises(anthropic.APIStatusError) as caught:
        seen.extend(event.type for event in claude.messages.create(**asked(stream=True)))
    assert seen == ["message_start", "content_block_start", *["content_block_delta"] * 2]
    assert caught.value.body["error"] == {"type": "overloaded_error", "message": "the worker is gone"}


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens is 0; it must be at least 1"),
        (
            {"extra_body": {"temperature": 1.5}},
            anthropic.BadRequestError,
            "temperature is 1.5; it must lie",
        ),
        (
            {"stop_sequences": ["a"] * 65},
            anthropic.BadRequestError,
            "stop_sequences has 65 strings; the limit is 64",
        ),
        (
            {"tools": [{"name": "a b", "input_schema": {"type": "object"}}]},
            anthropic.BadRequestError,
            "tools\\[0\\].name is 'a b'",
        ),
        (
            {"tool_choice": {"type": "any"}},
            anthropic.BadRequestError,
            "tool_choice.type is 'any', but there are no tools",
        ),
        ({"messages": []}, anthropic.BadRequestError, "messages is empty"),
        ({"model": "claude-none"}, anthropic.NotFoundError, "the model 'claude-none' does not exist"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            anthropic.BadRequestError,
            "messages\\[0\\].content\\[0\\] is a block of type 'image'",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            anthropic.BadRequestError,
            "tools\\[0\\] has the type 'web_search_20250305'",
        ),
        (
            {"messages": [{"role": "user", "content": "so " * 600}]},
            anthropic.BadRequestError,
            "^prompt is too long: .*maximum context length is 512 tokens",
        ),
    ],
)
def test_a_refusal_names_what_is_wrong(
    claude: anthropic.Anthropic,
    fields: dict[str, Any],
    kind: type[anthropic.APIStatusError],
    words: str,
) -> None:
    with pytest.raises(kind) as caught:
        claude.messages.create(**asked(**fields))
    with pytest.raises(kind, match=words):
        raise kind(caught.value.body["error"]["message"], response=caught.value.response, body=None)


def test_a_client_that_leaves_ends_its_answer(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    scripted.service.script = lambda _request: Script(hang_after=2)
    with claude.messages.stream(**asked()) as stream:
        for event in stream:
            if event.type == "text":
                break
    scripted.server.run(asyncio.wait_for(scripted.service.until_running(0), 10.0))


@pytest.fixture
def thinker(scripted: ScriptedWire) -> Iterator[ScriptedWire]:
    """The scripted model, which thinks between tags."""
    models = list(scripted.models)
    scripted.models[:] = [replace(models[0], reasoning_dialect=DIALECTS["think"])]
    yield scripted
    scripted.models[:] = models


def answers(client: anthropic.Anthropic, **fields: Any) -> list[anthropic.types.Message]:
    """To the same request, whole and streamed."""
    whole = client.messages.create(**asked(**fields))
    with client.messages.stream(**asked(**fields)) as stream:
        return [whole, stream.get_final_message()]


def test_what_was_thought_is_a_block_of_its_own(thinker: ScriptedWire, claude: anthropic.Anthropic) -> None:
    thinker.say("<think>Hm.</think>Hi")
    for answer in answers(claude, thinking={"type": "enabled", "budget_tokens": 1024}):
        thought, text = answer.content
        assert (thought.type, thought.thinking, text.text) == ("thinking", "Hm.", "Hi")
        assert len(thought.signature) == 44
        assert answer.usage.output_tokens == 21
        assert 3 <= answer.usage.output_tokens_details.thinking_tokens <= 18
        history = [*HELLO, answer.to_param(), {"role": "user", "content": "And?"}]
        assert claude.messages.create(**asked(messages=history)).stop_reason == "end_turn"


def test_thoughts_that_are_not_to_be_shown_leave_their_signature(
    thinker: ScriptedWire, claude: anthropic.Anthropic
) -> None:
    thinker.say("<think>Hm.</think>Hi")
    for answer in answers(claude, thinking={"type": "adaptive", "display": "omitted"}):
        thought, text = answer.content
        assert (thought.thinking, len(thought.signature), text.text) == ("", 44, "Hi")


WEATHER = {
    "name": "weather",
    "description": "Of a town",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo"}}\n</tool_call>'


@pytest.fixture
def roomy(scripted: ScriptedWire) -> Iterator[ScriptedWire]:
    """The scripted model with room for what tells it of tools."""
    service = scripted.service
    before = service.description
    service.description = msgspec.structs.replace(before, max_model_len=4096)
    yield scripted
    service.description = before


def test_a_tool_s_use(roomy: ScriptedWire, claude: anthropic.Anthropic) -> None:
    roomy.say(f"I look.\n{CALL}")
    for answer in answers(claude, max_tokens=200, tools=[WEATHER]):
        text, use = answer.content
        assert (text.type, text.text.strip()) == ("text", "I look.")
        assert (use.type, use.name, use.input) == ("tool_use", "weather", {"town": "Oslo"})
        assert answer.stop_reason == "tool_use"


def test_a_tool_s_result_goes_back_under_the_id_of_its_use(
    roomy: ScriptedWire, claude: anthropic.Anthropic
) -> None:
    roomy.say(CALL)
    [answer, _] = answers(claude, max_tokens=200, tools=[WEATHER])
    [use] = answer.content
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain", "is_error": False}
    roomy.say("It rains.")
    history = [*HELLO, answer.to_param(), {"role": "user", "content": [result]}]
    last = claude.messages.create(**asked(messages=history, tools=[WEATHER]))
    assert (last.content[0].text, last.stop_reason) == ("It rains.", "end_turn")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_use_that_is_asked_for_is_held_to_the_schema(
    roomy: ScriptedWire, claude: anthropic.Anthropic, choice: dict[str, Any]
) -> None:
    roomy.say(CALL)
    for answer in answers(claude, max_tokens=200, tools=[WEATHER], tool_choice=choice):
        assert [block.type for block in answer.content] == ["tool_use"]
    assert all(request.sampling.grammar is not None for request in roomy.service.requests)


def test_the_client_s_own_loop_of_tools_comes_to_its_end(
    roomy: ScriptedWire, claude: anthropic.Anthropic
) -> None:
    towns = []

    @anthropic.beta_tool
    def weather(town: str) -> str:
        """Of a town.

        Args:
            town: Its name.
        """
        towns.append(town)
        roomy.say("It rains.")
        return "rain"

    roomy.say(CALL)
    runner = claude.beta.messages.tool_runner(**asked(max_tokens=200), tools=[weather])
    assert runner.until_done().content[0].text == "It rains."
    assert towns == ["Oslo"]
    assert len(roomy.service.requests) == 2


def test_the_real_thing_uses_the_tool_that_it_must(stack: Wire, real: anthropic.Anthropic) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    fields = asked(model=stack.model, tools=[WEATHER], tool_choice=choice, max_tokens=200)
    fields["messages"] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    fields["extra_body"] = {"temperature": 0.0}
    for answer in answers(real, **fields):
        [use] = answer.content
        assert (answer.stop_reason, use.name, list(use.input)) == ("tool_use", "weather", ["town"])
        assert isinstance(use.input["town"], str)


def test_an_answer_in_the_form_asked_for(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    class Town(BaseModel):
        name: str

    scripted.say('{"name": "Oslo"}')
    parsed = claude.messages.parse(**asked(), output_format=Town)
    assert parsed.parsed_output == Town(name="Oslo")
    [request] = scripted.service.requests
    assert request.sampling.grammar is not None
    assert request.sampling.grammar.kind == "json_schema"


def test_the_real_thing_streams_what_it_says_whole(stack: Wire, real: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {
        "model": stack.model,
        "max_tokens": 24,
        "messages": HELLO,
        "extra_body": {"temperature": 0.0},
        "system": "You are friendly.",
    }
    whole = real.messages.create(**fields)
    with real.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].text == whole.content[0].text
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0
    size = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens == size
    counted = real.messages.count_tokens(model=stack.model, messages=HELLO, system="You are friendly.")
    assert counted.input_tokens == size


def test_the_billing_line_does_not_keep_the_real_thing_from_its_cache(
    stack: Wire, real: anthropic.Anthropic
) -> None:
    fields: dict[str, Any] = {"model": stack.model, "max_tokens": 1, "messages": HELLO}
    rules = "Never lie. " * 60
    first, second = (
        real.messages.create(**fields, system=f"{BILLING % cch}\n\n{rules}") for cch in ("eb6c6", "0aaa9")
    )
    size = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == size
    assert second.usage.cache_read_input_tokens > 0.8 * size
