"""What the openai client makes of our refusals: its exception classes, its retries, its cut streams."""

import asyncio
import itertools

import openai
import pytest
from openai import _base_client

from atomesh.errors import (
    AtomeshError,
    AuthenticationError,
    DeadlineExceededError,
    EngineError,
    FatalRequestError,
    PermissionDeniedError,
    RateLimitError,
    ServiceUnavailableError,
)
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire, Wire

TALK = [{"role": "user", "content": "hello"}]
FAULTS: list[tuple[AtomeshError, type[openai.APIStatusError], int]] = [
    (AuthenticationError("no key"), openai.AuthenticationError, 401),
    (PermissionDeniedError("not yours"), openai.PermissionDeniedError, 403),
    (RateLimitError("too much"), openai.RateLimitError, 429),
    (EngineError("lost"), openai.InternalServerError, 500),
    (ServiceUnavailableError("none ready"), openai.InternalServerError, 503),
    (DeadlineExceededError("too late"), openai.InternalServerError, 504),
]


def ask(client: openai.OpenAI, served: str, **fields):
    return client.chat.completions.create(**{"model": served, "messages": TALK, "max_tokens": 4, **fields})


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "clown", "content": "x"}]}, openai.BadRequestError, "messages[0].role"),
        ({"model": "no/such"}, openai.NotFoundError, "model"),
        ({"stream": True, "top_p": 0}, openai.BadRequestError, "top_p"),
    ],
)
def test_a_refusal_is_an_exception_that_names_the_field(stack: Wire, fields, kind, param: str) -> None:
    with pytest.raises(kind) as caught:
        ask(stack.client, stack.model, **fields)
    assert caught.value.param == param
    assert caught.value.type == caught.value.body["type"]
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


def test_a_prompt_beyond_the_context_has_its_own_code(stack: Wire) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens") as caught:
        ask(stack.client, stack.model, messages=[{"role": "user", "content": "so " * 3000}])
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(("error", "kind", "status"), FAULTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_fault_before_the_first_token_is_a_status(
    scripted: ScriptedWire, error: AtomeshError, kind: type[openai.APIStatusError], status: int, stream: bool
) -> None:
    scripted.service.script = lambda _request: Script(error=error)
    with pytest.raises(kind) as caught:
        ask(scripted.client, scripted.model, stream=stream)
    assert caught.value.status_code == status
    assert caught.value.body["message"] == error.message


@pytest.mark.parametrize("error", [error for error, _, _ in FAULTS], ids=lambda error: type(error).__name__)
def test_a_fault_in_a_stream_is_an_api_error(scripted: ScriptedWire, error: AtomeshError) -> None:
    scripted.service.script = lambda _request: Script(error=error, fail_after=2)
    stream = ask(scripted.client, scripted.model, stream=True)
    told = [next(iter(stream)), next(iter(stream))]
    assert all(chunk.choices[0].delta.content for chunk in told)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.body["code"] == error.status
    assert caught.value.message == error.message


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which a client would have waited before it tried again; it does not."""
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(_base_client.time, "sleep", waits.append)
    monkeypatch.setattr(_base_client.anyio, "sleep", note)
    return waits


def fails_first(scripted: ScriptedWire, *errors: AtomeshError) -> None:
    """One request after the other fails with one of `errors`, the next succeeds."""
    scripts = itertools.chain((Script(error=error) for error in errors), itertools.repeat(Script()))
    scripted.service.script = lambda _request: next(scripts)


@pytest.mark.parametrize("kind", [RateLimitError, ServiceUnavailableError])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_client_tries_again_after_the_time_we_name(
    scripted: ScriptedWire, slept: list[float], kind, stream: bool
) -> None:
    fails_first(scripted, kind("busy", retry_after_s=7), kind("busy", retry_after_s=90))
    answer = ask(scripted.client.with_options(max_retries=2), scripted.model, stream=stream)
    text = (
        "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        if stream
        else answer.choices[0].message.content
    )
    assert len(text) == 4
    assert slept == [7.0, 90.0]
    assert len(scripted.service.requests) == 3


def test_the_client_gives_up_with_the_last_error(scripted: ScriptedWire, slept: list[float]) -> None:
    scripted.service.script = lambda _request: Script(error=RateLimitError("busy", retry_after_s=3))
    with pytest.raises(openai.RateLimitError, match="busy") as caught:
        ask(scripted.client.with_options(max_retries=2), scripted.model)
    assert caught.value.response.headers["retry-after"] == "3"
    assert slept == [3.0, 3.0]


def test_what_killed_a_worker_is_not_sent_again(scripted: ScriptedWire, slept: list[float]) -> None:
    scripted.service.script = lambda _request: Script(error=FatalRequestError("two workers died of it"))
    with pytest.raises(openai.InternalServerError, match="two workers died"):
        ask(scripted.client.with_options(max_retries=2), scripted.model)
    assert slept == []
    assert len(scripted.service.requests) == 1


def test_the_asynchronous_client_tries_again_too(scripted: ScriptedWire, slept: list[float]) -> None:
    fails_first(scripted, ServiceUnavailableError("starting", retry_after_s=5))

    async def scenario() -> str | None:
        async with openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=1) as client:
            answer = await client.chat.completions.create(model=scripted.model, messages=TALK, max_tokens=4)
            return answer.choices[0].message.content

    assert len(asyncio.run(scenario()) or "") == 4
    assert slept == [5.0]


def test_a_client_that_will_not_wait_times_out(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(hang_after=0)
    with pytest.raises(openai.APITimeoutError):
        ask(scripted.client.with_options(timeout=0.2), scripted.model)
    scripted.server.run(scripted.service.until_running(0))
