"""The mock engines' HTTP, and what they say."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mock_dialect import MODEL, Asked, Dialect, EngineState, asked_decoder, probed, rendered
from mock_http import STREAM_END, MockRequest, RequestReader, chunk, whole_answer

FIRST = b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd"
SECOND = b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n"
REQUESTS = [MockRequest("POST", "/v1/chat/completions", b"abcd"), MockRequest("GET", "/health", b"")]


@given(st.lists(st.integers(0, len(FIRST + SECOND)), max_size=5))
def test_requests_are_read_however_they_are_cut(cuts: list[int]) -> None:
    data, reader, found, last = FIRST + SECOND, RequestReader(), [], 0
    for cut in sorted([*cuts, len(data)]):
        found += reader.feed(data[last:cut])
        last = cut
    assert found == REQUESTS


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_what_it_is_not_made_for_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        RequestReader().feed(data)


def test_answers_state_their_length() -> None:
    assert whole_answer(b"{}").endswith(b"content-length: 2\r\n\r\n{}")
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"


def test_a_stream_says_its_tokens_in_turn_and_then_its_usage() -> None:
    asked = asked_decoder.decode(b'{"max_tokens": 3, "stream_options": {"include_usage": true}}')
    dialect = Dialect([" one", " two"], [11, 12], is_chat=True, has_ids=True)
    chunks = [dialect.token(number, is_last=number == 2) for number in range(asked.wanted)]
    choices = [json.loads(part.split(b"data: ")[1].split(b"\n")[0])["choices"][0] for part in chunks]
    assert [choice["delta"]["content"] for choice in choices] == [" one", " two", " one"]
    assert [choice["token_ids"] for choice in choices] == [[11], [12], [11]]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]
    end = dialect.end(asked, cached=32, prompt=50)
    assert b'"prompt_tokens_details":{"cached_tokens":32}' in end
    assert end.endswith(b"data: [DONE]\n\n\r\n" + STREAM_END)


def test_a_whole_answer_says_the_same() -> None:
    dialect = Dialect([" one", " two"], [11, 12], is_chat=False, has_ids=True)
    document = json.loads(dialect.whole(Asked(max_tokens=3), cached=0, prompt=5))
    assert document["choices"][0]["text"] == " one two one"
    assert document["choices"][0]["token_ids"] == [11, 12, 11]
    assert document["usage"]["total_tokens"] == 8


def test_equal_words_are_rendered_to_equal_tokens() -> None:
    first = json.loads(rendered(b'{"messages": [{"content": "a b"}, {"content": "c"}]}'))
    second = json.loads(rendered(b'{"prompt": "a b d"}'))
    assert first["token_ids"][:2] == second["token_ids"][:2]
    assert first["token_ids"][2] != second["token_ids"][2]
    assert json.loads(rendered(b'{"prompt": [5, 6]}'))["token_ids"] == [5, 6]


def test_routers_are_told_what_they_ask() -> None:
    models = probed("/v1/models", 0.0)
    assert models is not None
    assert json.loads(models[0])["data"][0]["id"] == MODEL
    metrics = probed("/metrics", 1.5, EngineState(running=1, waiting=3, kv_usage=0.5, block_size=16))
    assert metrics is not None
    assert b'num_requests_waiting{engine="0",model_name="mock"} 3.0' in metrics[0]
    assert b'block_size="16"' in metrics[0]
    assert probed("/nowhere", 0.0) is None
