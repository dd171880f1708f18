"""Every error of CONTRACT.md 2 and 4, with its exact shape, on any server."""

from typing import Any

import openai
import pytest

from atomesh.testing.raw_http import RawResponse, connect, read_response, request_bytes, send
from atomesh.testing.wire import Wire

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def check(response: RawResponse, status: int, kind: str, **fields: Any) -> dict[str, Any]:
    error = response.error
    assert (response.status, error["type"]) == (status, kind)
    assert {name: error[name] for name in fields} == fields
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return error


def test_an_unknown_route(wire: Wire) -> None:
    check(send(wire.url, "GET", "/v2/nothing"), 404, "not_found", code="not_found", param=None)


def test_a_known_route_with_a_slash_too_many(wire: Wire) -> None:
    check(send(wire.url, "POST", CHAT + "/", {"messages": HELLO}), 404, "not_found")


def test_the_wrong_method(wire: Wire) -> None:
    response = send(wire.url, "GET", CHAT)
    check(response, 405, "method_not_allowed", code="method_not_allowed")
    assert response.headers["allow"] == "POST"


def test_the_wrong_media_type(wire: Wire) -> None:
    response = send(wire.url, "POST", CHAT, b"a=b", {"content-type": "application/x-www-form-urlencoded"})
    error = check(response, 415, "unsupported_media_type", code="unsupported_media_type")
    assert "application/json" in error["message"]


def test_a_compressed_body(wire: Wire) -> None:
    response = send(wire.url, "POST", CHAT, b"\x1f\x8b", {"content-encoding": "gzip"})
    check(response, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\x00",
        b'{"messages": NaN}',
        b'{"temperature": Infinity, "messages": []}',
        b'{"messages": "\xff\xfe"}',
        b'{"unknown": "\xff\xfe", "messages": [{"role": "user", "content": "hello"}]}',
        b'{"messages": "\\ud800"}',
        b'{"messages": 1} trailing',
        b'{"messages": "a\x00b"}',
        b"[" * 1_000_000,
        b'{"metadata": ' + b"[" * 100_000,
        b'{"metadata": ' + b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_no_json_we_read(wire: Wire, body: bytes) -> None:
    check(send(wire.url, "POST", CHAT, body), 400, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"max_tokens": 5}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hello"}, "messages"),
        (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [*HELLO, {"role": "user"}]}, "messages[1].content"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        (CHAT, {"messages": HELLO, "temperature": 2.5}, "temperature"),
        (CHAT, {"messages": HELLO, "temperature": -0.1}, "temperature"),
        (CHAT, {"messages": HELLO, "temperature": "hot"}, "temperature"),
        (CHAT, {"messages": HELLO, "top_p": 0.0}, "top_p"),
        (CHAT, {"messages": HELLO, "top_p": 1.1}, "top_p"),
        (CHAT, {"messages": HELLO, "top_k": -2}, "top_k"),
        (CHAT, {"messages": HELLO, "min_p": 1.5}, "min_p"),
        (CHAT, {"messages": HELLO, "presence_penalty": 2.1}, "presence_penalty"),
        (CHAT, {"messages": HELLO, "frequency_penalty": -2.1}, "frequency_penalty"),
        (CHAT, {"messages": HELLO, "repetition_penalty": 0}, "repetition_penalty"),
        (CHAT, {"messages": HELLO, "seed": 2**63}, "seed"),
        (CHAT, {"messages": HELLO, "n": 0}, "n"),
        (CHAT, {"messages": HELLO, "n": 129}, "n"),
        (CHAT, {"messages": HELLO, "n": 2, "temperature": 0}, "n"),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HELLO, "max_tokens": -1}, "max_tokens"),
        (CHAT, {"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"messages": HELLO, "max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"messages": HELLO, "min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        (CHAT, {"messages": HELLO, "top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"messages": HELLO, "logprobs": 3}, "logprobs"),
        (CHAT, {"messages": HELLO, "stop": ""}, "stop"),
        (CHAT, {"messages": HELLO, "stop": ["a"] * 65}, "stop"),
        (CHAT, {"messages": HELLO, "stop": ["a" * 1025]}, "stop"),
        (CHAT, {"messages": HELLO, "stop": ["a"] * 100_000}, "stop"),
        (CHAT, {"messages": HELLO, "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        (CHAT, {"messages": HELLO, "logit_bias": {"hello": 1}}, "logit_bias"),
        (CHAT, {"messages": HELLO, "logit_bias": {"99999999": 1}}, "logit_bias"),
        (CHAT, {"messages": HELLO, "stop_token_ids": [99999999]}, "stop_token_ids"),
        (CHAT, {"messages": HELLO, "allowed_token_ids": [-1]}, "allowed_token_ids"),
        (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": HELLO, "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        (CHAT, {"messages": HELLO, "prompt_logprobs": 21}, "prompt_logprobs"),
        (CHAT, {"messages": HELLO, "best_of": 2}, "best_of"),
        (CHAT, {"messages": HELLO, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        (CHAT, {"messages": HELLO, "priority": 2**63}, "priority"),
        (CHAT, {"messages": HELLO, "cache_salt": ""}, "cache_salt"),
        (
            CHAT,
            {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f g"}}]},
            "tools[0].function.name",
        ),
        (CHAT, {"messages": HELLO, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
        (
            CHAT,
            {"messages": HELLO, "response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
        ),
        (CHAT, {"messages": HELLO, "response_format": "text"}, "response_format"),
        (CHAT, {"messages": HELLO, "structured_outputs": {"regex": "("}}, "structured_outputs"),
        (CHAT, {"messages": HELLO, "structured_outputs": {}}, "structured_outputs"),
        (CHAT, {"messages": HELLO, "structured_outputs": {"json": {"not": {}}}}, "structured_outputs"),
        (CHAT, {"messages": HELLO, "guided_json": {"type": "object"}}, "guided_json"),
        (CHAT, {"messages": HELLO, "guided_choice": ["a"]}, "guided_choice"),
        (CHAT, {"messages": HELLO, "guided_json": {}}, "guided_json"),
        (CHAT, {"messages": HELLO, "echo": True}, "echo"),
        (TEXT, {"prompt": "a", "response_format": {"type": "structural_tag"}}, "response_format.type"),
        (TEXT, {"prompt": "a", "structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        (TEXT, {"prompt": "a", "tools": [{"type": "function"}]}, "tools"),
        (TEXT, {"prompt": "a", "guided_json": {}}, "guided_json"),
        (CHAT, {"messages": HELLO, "reasoning_effort": "high"}, "reasoning_effort"),
        (CHAT, {"messages": HELLO, "kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        (CHAT, {"messages": HELLO, "bootstrap_host": "10.0.0.1"}, "bootstrap_host"),
        (CHAT, {"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"evil": 1}}, "chat_template_kwargs.evil"),
        (
            CHAT,
            {"messages": HELLO, "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
        (TEXT, {}, "prompt"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": [[]]}, "prompt[0]"),
        (TEXT, {"prompt": ["a", ""]}, "prompt[1]"),
        (TEXT, {"prompt": ["a", 1]}, "prompt"),
        (TEXT, {"prompt": ["a", [1]]}, "prompt"),
        (TEXT, {"prompt": [1, 99999999]}, "prompt"),
        (TEXT, {"prompt": [[1], [-1]]}, "prompt[1]"),
        (TEXT, {"prompt": [1, 10**30]}, "prompt"),
        (TEXT, {"prompt": {"text": "a"}}, "prompt"),
        (TEXT, {"prompt": ["a"] * 1025}, "prompt"),
        (TEXT, {"prompt": ["a"] * 9, "n": 128}, "n"),
        (TEXT, {"prompt": "a", "logprobs": 6}, "logprobs"),
        (TEXT, {"prompt": "a", "logprobs": True}, "logprobs"),
        (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (TEXT, {"prompt": "a", "echo": True, "max_tokens": -1}, "max_tokens"),
        (TEXT, {"prompt": "a", "best_of": 2}, "best_of"),
        (TEXT, {"prompt": "a", "suffix": "b"}, "suffix"),
    ],
    ids=repr,
)
def test_a_request_out_of_range(wire: Wire, path: str, fields: dict[str, Any], param: str | None) -> None:
    response = send(wire.url, "POST", path, {"model": wire.model, **fields})
    error = check(response, 400, "invalid_request_error", param=param, code=None)
    assert len(error["message"]) < 600


@pytest.mark.parametrize("header", ["x-atomesh-ticket", "x-data-parallel-rank", "x-prefiller-host-port"])
def test_an_internal_header(wire: Wire, header: str) -> None:
    response = send(wire.url, "POST", CHAT, {"messages": HELLO}, {header: "1"})
    check(response, 400, "invalid_request_error", param=header)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "1e9"])
def test_a_timeout_that_is_none(wire: Wire, value: str) -> None:
    response = send(wire.url, "POST", CHAT, {"messages": HELLO}, {"x-request-timeout": value})
    check(response, 400, "invalid_request_error", param="x-request-timeout")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context(wire: Wire, stream: bool) -> None:
    limit = wire.client.models.list().data[0].model_extra["max_model_len"]
    response = send(wire.url, "POST", TEXT, {"prompt": [65] * limit, "stream": stream})
    error = check(response, 400, "invalid_request_error", code="context_length_exceeded", param="prompt")
    assert f"maximum context length is {limit} tokens" in error["message"]
    words = "word and " * limit * 10
    response = send(wire.url, "POST", CHAT, {"messages": [{"role": "user", "content": words}]})
    error = check(response, 400, "invalid_request_error", code="context_length_exceeded", param="messages")
    assert f"maximum context length is {limit} tokens" in error["message"]


def test_more_messages_than_the_context_has_tokens(wire: Wire) -> None:
    limit = wire.client.models.list().data[0].model_extra["max_model_len"]
    response = send(wire.url, "POST", CHAT, {"messages": [{"role": "user", "content": ""}] * (limit + 1)})
    error = check(response, 400, "invalid_request_error", code="context_length_exceeded", param="messages")
    assert f"there are {limit + 1} messages" in error["message"]


def test_a_declared_body_beyond_the_limit_is_refused_unread(wire: Wire) -> None:
    with connect(wire.url) as connection:
        head = request_bytes(
            "POST", CHAT, b"", {"content-type": "application/json", "content-length": "104857600"}
        )
        connection.sendall(head)
        check(read_response(connection), 413, "request_too_large", code="request_too_large")


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\na b: c\r\n\r\n"]
)
def test_what_is_no_http(wire: Wire, garbage: bytes) -> None:
    with connect(wire.url) as connection:
        connection.sendall(garbage)
        check(read_response(connection), 400, "invalid_request_error")


def test_the_client_sees_typed_errors(wire: Wire) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        wire.client.chat.completions.create(model=wire.model, messages=HELLO, temperature=3)
    assert caught.value.status_code == 400
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"


def test_embeddings_are_refused_clearly(wire: Wire) -> None:
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        wire.client.embeddings.create(model=wire.model, input="x")


def test_unknown_extra_fields_are_ignored(wire: Wire) -> None:
    answer = wire.client.chat.completions.create(
        model=wire.model, messages=HELLO, max_tokens=2, extra_body={"future_field": {"a": [1]}, "user": "me"}
    )
    assert answer.usage.completion_tokens >= 1


def test_null_means_the_default(wire: Wire) -> None:
    fields = (
        "temperature",
        "top_p",
        "n",
        "stop",
        "seed",
        "tools",
        "logit_bias",
        "stream",
        "guided_json",
        "response_format",
    )
    body = {"model": wire.model, "messages": HELLO, "max_tokens": 2, **dict.fromkeys(fields)}
    assert send(wire.url, "POST", CHAT, body).status == 200
