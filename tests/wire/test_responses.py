"""POST /v1/responses and what is asked of a response later, on the scripted server."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from atomesh.errors import EngineError, ServiceUnavailableError
from atomesh.testing.raw_http import RawResponse, connect, request_bytes, send
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire

pytestmark = pytest.mark.usefixtures("both_ways")
PATH = "/v1/responses"
SPOKEN = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    *["response.output_text.delta"] * 5,
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def ask(wire: ScriptedWire, **fields: Any) -> Any:
    return wire.client.responses.create(**{"model": wire.model, "input": "hi", **fields})


def prompt(wire: ScriptedWire) -> str:
    """The last request's; start and end marks are | and /."""
    marks = {258: ord("|"), 257: ord("/")}
    return bytes(marks.get(token, token) for token in wire.service.requests[-1].prompt_token_ids).decode()


def events(answer: RawResponse) -> list[dict[str, Any]]:
    """Each with the name of its event line, which must be its type."""
    frames = [frame for frame in answer.body.decode().split("\n\n") if frame and frame[0] != ":"]
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


@contextmanager
def gated(wire: ScriptedWire, tokens: bytes = b"Hello") -> Iterator[asyncio.Event]:
    """Answers whose tokens wait for `opened`, or for the end of the block."""

    async def make() -> asyncio.Event:
        return asyncio.Event()

    gate = wire.server.run(make())
    spoken = [[*tokens, 257]]
    wire.service.script = lambda _request: Script(tokens=spoken, gate=gate)
    yield gate
    opened(wire, gate)


def opened(wire: ScriptedWire, gate: asyncio.Event) -> None:
    wire.server.loop.call_soon_threadsafe(gate.set)


def until_running(wire: ScriptedWire, count: int) -> None:
    wire.server.run(wire.service.until_running(count))


def test_a_response_is_what_the_sdk_says_it_is(scripted: ScriptedWire) -> None:
    scripted.say("Hello")
    answer = ask(
        scripted,
        instructions="be brief",
        max_output_tokens=40,
        temperature=0.5,
        top_p=0.9,
        metadata={"k": "v"},
        user="u",
        prompt_cache_key="pk",
        safety_identifier="s",
        service_tier="auto",
        reasoning={"summary": "auto"},
        truncation="auto",
    )
    assert prompt(scripted) == "|system\nbe brief/|user\nhi/|assistant\n"
    told = answer.to_dict()
    Response.model_validate(told)
    assert answer.id.startswith("resp_")
    assert answer.output_text == "Hello"
    [message] = told["output"]
    assert message["id"].startswith("msg_")
    assert {
        name: value for name, value in told.items() if name not in ("id", "created_at", "completed_at")
    } == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "be brief",
        "max_output_tokens": 40,
        "max_tool_calls": None,
        "model": scripted.model,
        "output": [
            {
                "id": message["id"],
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": "pk",
        "reasoning": {"effort": None, "summary": "auto"},
        "safety_identifier": "s",
        "service_tier": "default",
        "store": True,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 0.9,
        "truncation": "auto",
        "usage": {
            "input_tokens": len(scripted.service.requests[-1].prompt_token_ids),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(scripted.service.requests[-1].prompt_token_ids) + 6,
        },
        "user": "u",
        "metadata": {"k": "v"},
    }
    assert told["completed_at"] >= told["created_at"]


def test_what_max_output_tokens_cuts_is_incomplete(scripted: ScriptedWire) -> None:
    scripted.say("Hello")
    whole = ask(scripted, max_output_tokens=3)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (whole.output_text, whole.output[0].status) == ("Hel", "incomplete")
    *_, last = ask(scripted, max_output_tokens=3, stream=True)
    assert last.type == "response.incomplete"
    assert last.response.output[0].status == "incomplete"


def test_cached_tokens_are_told(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(tokens=[[257]], cached_tokens=7)
    assert ask(scripted).usage.input_tokens_details.cached_tokens == 7


def test_a_stream_has_its_events_in_their_order_and_no_done(scripted: ScriptedWire) -> None:
    scripted.say("Hello")
    answer = send(scripted.url, "POST", PATH, {"input": "hi", "stream": True})
    assert answer.is_complete
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    told = events(answer)
    assert [event["type"] for event in told] == SPOKEN
    assert [event["sequence_number"] for event in told] == list(range(len(SPOKEN)))
    created, progress, *_, completed = (event.get("response") for event in told)
    assert created == progress
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert completed["output"] == [told[-2]["item"]]
    assert completed["usage"]["output_tokens"] == 6
    same = [name for name in created if name not in ("status", "output", "usage", "completed_at")]
    assert {name: created[name] for name in same} == {name: completed[name] for name in same}


@pytest.mark.parametrize("stored", [True, False])
def test_a_stream_joins_to_the_whole_answer(scripted: ScriptedWire, stored: bool) -> None:
    scripted.say("Grüße 👋 an alle")
    whole = ask(scripted, store=stored)
    streamed = list(ask(scripted, store=stored, stream=True))
    deltas = [event.delta for event in streamed if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == "Grüße 👋 an alle"
    assert streamed[-1].response.output_text == whole.output_text
    assert streamed[-1].response.usage == whole.usage


def test_the_sdk_s_stream_helper_follows(scripted: ScriptedWire) -> None:
    scripted.say("Hello")
    with scripted.client.responses.stream(model=scripted.model, input="hi") as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert texts == ["H", "He", "Hel", "Hell", "Hello"]
    assert final.output_text == "Hello"


@pytest.mark.parametrize("fields", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}])
def test_logprobs_are_of_every_token_of_the_text(scripted: ScriptedWire, fields: dict[str, Any]) -> None:
    scripted.say("Grüß")
    whole = ask(scripted, **fields).output[0].content[0].logprobs
    assert bytes(b for entry in whole[:-1] for b in entry.bytes) == "Grüß".encode()
    assert whole[-1].token == "<|end|>"
    assert {len(entry.top_logprobs) for entry in whole} == {fields.get("top_logprobs", 0)}
    streamed = list(ask(scripted, **fields, stream=True))
    parts = [event.logprobs for event in streamed if event.type == "response.output_text.delta"]
    [done] = [event for event in streamed if event.type == "response.output_text.done"]
    assert [entry.token for part in parts for entry in part] == [entry.token for entry in whole]
    assert [entry.token for entry in done.logprobs] == [entry.token for entry in whole]
    assert streamed[-1].response.output[0].content[0].logprobs == whole


def test_a_conversation_goes_on_and_branches_without_old_instructions(scripted: ScriptedWire) -> None:
    scripted.say("one")
    first = ask(scripted, input="1?", instructions="count")
    scripted.say("two")
    second = ask(scripted, input=[{"role": "user", "content": "2?"}], previous_response_id=first.id)
    assert prompt(scripted) == "|user\n1?/|assistant\none/|user\n2?/|assistant\n"
    assert second.previous_response_id == first.id
    ask(scripted, input="3?", previous_response_id=second.id, instructions="go on", store=False)
    assert prompt(scripted) == (
        "|system\ngo on/|user\n1?/|assistant\none/|user\n2?/|assistant\ntwo/|user\n3?/|assistant\n"
    )
    ask(scripted, input="2b?", previous_response_id=first.id)
    assert prompt(scripted) == "|user\n1?/|assistant\none/|user\n2b?/|assistant\n"


def test_kept_items_may_be_named_instead_of_sent(scripted: ScriptedWire) -> None:
    scripted.say("one")
    first = ask(scripted, input="1?")
    asked = [{"role": "user", "content": "0?"}, {"type": "item_reference", "id": first.output[0].id}]
    ask(scripted, input=asked)
    assert prompt(scripted) == "|user\n0?/|assistant\none/|assistant\n"
    with pytest.raises(openai.BadRequestError, match="there is no item 'msg_none'") as caught:
        ask(scripted, input=[{"type": "item_reference", "id": "msg_none"}])
    assert caught.value.param == "input[0].id"


def test_a_streamed_response_is_stored_when_its_last_event_is_there(scripted: ScriptedWire) -> None:
    scripted.say("Hello")
    for _ in range(20):
        *_, last = ask(scripted, stream=True)
        assert scripted.client.responses.retrieve(last.response.id) == last.response


def test_a_stored_response_can_be_had_and_deleted(scripted: ScriptedWire) -> None:
    scripted.say("Hello")
    kept, passed = ask(scripted), ask(scripted, store=False)
    assert scripted.client.responses.retrieve(kept.id) == kept
    scripted.client.responses.delete(kept.id)
    again = send(scripted.url, "DELETE", f"{PATH}/{kept.id}")
    assert (again.status, again.error["type"]) == (404, "not_found")
    for gone in (kept.id, passed.id, "resp_none"):
        with pytest.raises(openai.NotFoundError):
            scripted.client.responses.retrieve(gone)
        with pytest.raises(openai.BadRequestError) as caught:
            ask(scripted, previous_response_id=gone)
        assert (caught.value.code, caught.value.param) == (
            "previous_response_not_found",
            "previous_response_id",
        )


def test_what_delete_says(scripted: ScriptedWire) -> None:
    kept = ask(scripted)
    answer = send(scripted.url, "DELETE", f"{PATH}/{kept.id}")
    assert answer.json() == {"id": kept.id, "object": "response", "deleted": True}


def test_input_items_are_the_whole_conversation_s_by_pages(scripted: ScriptedWire) -> None:
    scripted.say("one")
    first = ask(scripted, input="1?", instructions="count")
    second = ask(scripted, input="2?", previous_response_id=first.id)
    list_items = scripted.client.responses.input_items.list
    newest = [item.content[0].text for item in list_items(second.id)]
    assert newest == ["2?", "one", "1?"]
    page = list_items(second.id, order="asc", limit=2)
    assert [item.content[0].text for item in page.data] == ["1?", "one"]
    assert page.has_more
    assert [item.content[0].text for item in page.get_next_page().data] == ["2?"]
    for query, param in (
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=no", "after"),
    ):
        answer = send(scripted.url, "GET", f"{PATH}/{second.id}/input_items?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


def test_input_tokens_are_those_of_the_answer_s_usage(scripted: ScriptedWire) -> None:
    scripted.say("one")
    first = ask(scripted, input="1?")
    asked = {"input": "2?", "instructions": "count", "previous_response_id": first.id}
    counted = scripted.client.responses.input_tokens.count(model=scripted.model, **asked)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == ask(scripted, **asked).usage.input_tokens


def test_another_server_s_tokens_are_not_counted(scripted: ScriptedWire) -> None:
    scripted.models[:] = [replace(model, is_relayed=True) for model in scripted.models]
    with pytest.raises(openai.BadRequestError, match="are another server's to count") as caught:
        scripted.client.responses.input_tokens.count(model=scripted.model, input="x")
    assert caught.value.param == "model"


def test_truncation_drops_the_oldest_and_leaves_room(scripted: ScriptedWire) -> None:
    turns = [{"role": "user", "content": f"{number:03d}" + "x" * 60} for number in range(10)]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as caught:
        ask(scripted, input=turns)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    ask(scripted, input=turns, instructions="stay", truncation="auto", max_output_tokens=50)
    kept = [int(turn[5:8]) for turn in prompt(scripted).split("|")[2:-1]]
    assert prompt(scripted).startswith("|system\nstay/")
    assert kept == list(range(kept[0], 10))
    assert kept[0] > 0
    room = 512 - len(scripted.service.requests[-1].prompt_token_ids)
    assert 50 <= room < 50 + 70
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        ask(scripted, input="x" * 600, truncation="auto")


def test_a_background_response_is_queued_then_there(scripted: ScriptedWire) -> None:
    with gated(scripted):
        queued = ask(scripted, background=True)
        assert (queued.status, queued.output, queued.background) == ("queued", [], True)
        until_running(scripted, 1)
        assert scripted.client.responses.retrieve(queued.id).status == "queued"
        with pytest.raises(openai.BadRequestError, match="is still being answered"):
            ask(scripted, previous_response_id=queued.id)
    *_, last = scripted.client.responses.retrieve(queued.id, stream=True)
    done = scripted.client.responses.retrieve(queued.id)
    assert (done.status, done.output_text) == ("completed", "Hello")
    assert last.response == done
    assert Response.model_validate(done.to_dict())


def test_a_background_stream_is_followed_from_anywhere_by_anyone(scripted: ScriptedWire) -> None:
    names = [SPOKEN[0], "response.queued", *SPOKEN[1:]]
    with gated(scripted) as gate:
        stream = ask(scripted, background=True, stream=True)
        created = next(iter(stream))
        assert (created.type, created.response.status) == ("response.created", "queued")
        until_running(scripted, 1)
        found: list[Any] = []
        follower = threading.Thread(
            target=lambda: found.extend(scripted.client.responses.retrieve(created.response.id, stream=True))
        )
        follower.start()
        opened(scripted, gate)
        assert [event.type for event in stream] == names[1:]
        follower.join(10.0)
        assert [event.type for event in found] == names
    late = list(scripted.client.responses.retrieve(created.response.id, stream=True, starting_after=4))
    assert [event.sequence_number for event in late] == list(range(5, len(names)))
    assert late == found[5:]
    ended = send(scripted.url, "GET", f"{PATH}/{created.response.id}?stream=true&starting_after=99")
    assert (ended.status, ended.body, ended.is_complete) == (200, b"", True)


def test_a_background_response_runs_on_without_its_client(scripted: ScriptedWire) -> None:
    with gated(scripted) as gate:
        stream = ask(scripted, background=True, stream=True)
        response_id = next(iter(stream)).response.id
        until_running(scripted, 1)
        stream.close()
        opened(scripted, gate)
    *_, last = scripted.client.responses.retrieve(response_id, stream=True)
    assert last.response.output_text == "Hello"


def test_cancel_ends_a_background_response_once(scripted: ScriptedWire) -> None:
    with gated(scripted):
        queued = ask(scripted, background=True)
        until_running(scripted, 1)
        for _ in range(2):
            assert scripted.client.responses.cancel(queued.id).status == "cancelled"
        until_running(scripted, 0)
    assert len(scripted.service.aborted) == 1
    assert scripted.client.responses.retrieve(queued.id).status == "cancelled"
    told = send(scripted.url, "GET", f"{PATH}/{queued.id}?stream=true")
    assert not told.is_complete
    assert events(told)[-1]["code"] == "cancelled"


def test_only_what_runs_in_the_background_can_be_cancelled_or_followed(scripted: ScriptedWire) -> None:
    done = ask(scripted)
    with pytest.raises(openai.BadRequestError, match="does not run in the background"):
        scripted.client.responses.cancel(done.id)
    with pytest.raises(openai.BadRequestError, match="leave stream out"):
        scripted.client.responses.retrieve(done.id, stream=True)
    for path in ("resp_none/cancel", "resp_none"):
        assert send(scripted.url, "POST" if "/" in path else "GET", f"{PATH}/{path}").status == 404
    assert send(scripted.url, "GET", f"{PATH}/resp_none?stream=maybe").error["param"] == "stream"


def test_deleting_a_running_response_ends_it(scripted: ScriptedWire) -> None:
    with gated(scripted):
        queued = ask(scripted, background=True)
        until_running(scripted, 1)
        scripted.client.responses.delete(queued.id)
        until_running(scripted, 0)
    with pytest.raises(openai.NotFoundError):
        scripted.client.responses.retrieve(queued.id)


def test_a_background_response_that_fails_says_so(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(error=EngineError("lost"))
    queued = ask(scripted, background=True)
    told = send(scripted.url, "GET", f"{PATH}/{queued.id}?stream=true")
    assert not told.is_complete
    assert [event["type"] for event in events(told)] == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.failed",
        "error",
    ]
    failed = scripted.client.responses.retrieve(queued.id)
    assert (failed.status, failed.error.code, failed.error.message) == ("failed", "server_error", "lost")


def test_a_client_that_leaves_ends_its_response(scripted: ScriptedWire) -> None:
    with gated(scripted):
        with connect(scripted.url) as connection:
            connection.sendall(request_bytes("POST", PATH, b'{"input":"hi"}', {"connection": "keep-alive"}))
            until_running(scripted, 1)
        until_running(scripted, 0)
    assert len(scripted.service.aborted) == 1


def test_a_fault_before_the_first_token_is_a_status(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(error=ServiceUnavailableError("none is ready"))
    for stream in (False, True):
        answer = send(scripted.url, "POST", PATH, {"input": "hi", "stream": stream})
        assert (answer.status, answer.error["type"]) == (503, "service_unavailable_error")


@pytest.mark.parametrize("stored", [True, False])
def test_a_fault_after_it_is_an_error_event_and_a_cut(scripted: ScriptedWire, stored: bool) -> None:
    scripted.service.script = lambda _request: Script(error=EngineError("lost"), fail_after=2)
    asked = {"input": "hi", "stream": True, "store": stored}
    answer = send(scripted.url, "POST", PATH, asked)
    assert (answer.status, answer.is_complete) == (200, False)
    *_, failed, error = events(answer)
    assert {name: error[name] for name in ("type", "code", "message", "param")} == {
        "type": "error",
        "code": "server_error",
        "message": "lost",
        "param": None,
    }
    assert error["error"] == {"message": "lost", "type": "server_error", "param": None, "code": 500}
    assert failed["type"] == ("response.failed" if stored else "response.output_text.delta")
    if stored:
        assert failed["response"]["error"] == {"code": "server_error", "message": "lost"}
        kept = scripted.client.responses.retrieve(failed["response"]["id"])
        assert (kept.status, kept.output[0].status) == ("failed", "incomplete")
    with pytest.raises(openai.APIError, match="lost"):
        list(ask(scripted, stream=True, store=stored))


def test_a_fault_amid_a_whole_answer_is_a_status(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(error=EngineError("lost"), fail_after=2)
    assert send(scripted.url, "POST", PATH, {"input": "hi"}).status == 500


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "user", "content": [{"type": 5}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"reasoning": {"summary": "none"}}, "reasoning.summary"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_a_bad_field_is_named(scripted: ScriptedWire, fields: dict[str, Any], param: str) -> None:
    answer = send(scripted.url, "POST", PATH, {"input": "hi", **fields})
    assert (answer.status, answer.error["type"], answer.error["param"]) == (
        400,
        "invalid_request_error",
        param,
    )


def test_an_unknown_model_is_a_404(scripted: ScriptedWire) -> None:
    with pytest.raises(openai.NotFoundError):
        ask(scripted, model="no/such")


def test_requests_of_the_responses_are_counted_by_route(scripted: ScriptedWire) -> None:
    kept = ask(scripted)
    scripted.client.responses.retrieve(kept.id)
    metrics = send(scripted.url, "GET", "/metrics").body.decode()
    for endpoint in (PATH, f"{PATH}/{{id}}"):
        assert f'atomesh_http_requests_total{{endpoint="{endpoint}",status="200"}}' in metrics
