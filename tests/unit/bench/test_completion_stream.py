import json
from typing import Any

import pytest

from atomesh.bench.completion_stream import Completion, CompletionStream, OutputChunk, Piece
from atomesh.bench.failures import RequestFailed
from atomesh.bench.sse import ServerEvent

DONE = "[DONE]"


def text(value: str | None, finish: str | None = None, **extra: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": value, "finish_reason": finish}], **extra}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def play(*bodies: dict[str, Any] | str) -> CompletionStream:
    """Observes one body a second, from second 1."""
    stream = CompletionStream()
    for second, body in enumerate(bodies, start=1):
        data = body if isinstance(body, str) else json.dumps(body)
        stream.observe(ServerEvent(data), float(second))
    return stream


def test_usage_at_the_end_counts_the_tokens() -> None:
    stream = play(text("a"), text("b"), text("", "length"), {"choices": [], **usage(7, 3)}, DONE)

    assert stream.result() == Completion(
        chunks=(OutputChunk(1.0, 1), OutputChunk(2.0, 1)),
        first_s=1.0,
        last_s=3.0,
        finish_reason="length",
        prompt_tokens=7,
        output_tokens=3,
        counted_by_usage=True,
    )


def test_without_usage_output_chunks_are_counted() -> None:
    result = play(text("a"), text("b"), text("c", "stop"), DONE).result()

    assert (result.output_tokens, result.prompt_tokens, result.counted_by_usage) == (3, None, False)


def test_usage_that_says_zero_after_output_is_not_believed() -> None:
    result = play(text("a"), text("b", "stop"), {"choices": [], **usage(4, 0)}, DONE).result()

    assert (result.output_tokens, result.prompt_tokens, result.counted_by_usage) == (2, 4, False)


def test_continuous_usage_tells_which_chunks_brought_tokens_and_how_many() -> None:
    stream = play(
        text("", **usage(5, 0)),
        text("ab", **usage(5, 2)),
        text("", **usage(5, 3)),
        text("cde", **usage(5, 6)),
        text("", "length", **usage(5, 6)),
        DONE,
    )

    result = stream.result()

    assert result.chunks == (OutputChunk(2.0, 2), OutputChunk(3.0, 1), OutputChunk(4.0, 3))
    assert (result.first_s, result.last_s, result.output_tokens) == (2.0, 5.0, 6)


def test_usage_on_the_finish_chunk_alone_is_not_taken_for_continuous() -> None:
    result = play(text("a"), text("b"), text("", "stop", **usage(5, 2)), DONE).result()

    assert result.chunks == (OutputChunk(1.0, 1), OutputChunk(2.0, 1))
    assert result.output_tokens == 2


def test_the_role_alone_is_no_token() -> None:
    result = play(delta(role="assistant", content=""), delta(content="a"), delta("stop"), DONE).result()

    assert result.chunks == (OutputChunk(2.0, 1),)


def test_the_role_with_the_first_token_is_one() -> None:
    result = play(delta(role="assistant", content="a"), delta("stop"), DONE).result()

    assert result.chunks == (OutputChunk(1.0, 1),)


@pytest.mark.parametrize(
    "body",
    [
        text(""),
        delta(content=""),
        delta(reasoning="hm"),
        delta(reasoning_content="hm"),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
    ],
    ids=["held-back text", "held-back content", "reasoning", "reasoning_content", "tool call"],
)
def test_output_that_is_no_text_counts(body: dict[str, Any]) -> None:
    assert play(body, text("", "stop"), DONE).result().chunks == (OutputChunk(1.0, 1),)


def test_an_answer_without_output_begins_and_ends_with_its_finish_reason() -> None:
    result = play(text("", "stop"), {"choices": [], **usage(5, 1)}, DONE).result()

    assert (result.first_s, result.last_s, result.output_tokens) == (1.0, 1.0, 1)


def test_pieces_carry_text_and_reasoning() -> None:
    stream = CompletionStream()

    pieces = [
        stream.observe(ServerEvent(json.dumps(body)), 0.0)
        for body in (delta(content="a"), delta(reasoning="b"), text("c"), {"choices": []})
    ]

    assert pieces == [Piece("a"), Piece("", "b"), Piece("c"), Piece()]


def test_a_stream_without_done_was_cut() -> None:
    with pytest.raises(RequestFailed, match=r"without \[DONE\]") as caught:
        play(text("a"), text("", "stop")).result()

    assert caught.value.kind == "cut stream"


def test_a_stream_without_a_finish_reason_is_no_success() -> None:
    with pytest.raises(RequestFailed) as caught:
        play(text("a"), DONE).result()

    assert caught.value.kind == "no finish reason"


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_finish_reason_that_admits_failure_is_no_success(reason: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        play(text("a"), text("", reason), DONE).result()

    assert caught.value.kind == f"finish reason {reason}"


@pytest.mark.parametrize(
    ("name", "data", "kind", "message", "status"),
    [
        ("error", '{"error": {"message": "lost", "code": 503}}', "error frame 503", "lost", 503),
        ("", '{"error": {"message": "lost", "code": 503}}', "error frame 503", "lost", 503),
        ("", '{"error": {"message": "lost", "code": "gone"}}', "error frame gone", "lost", None),
        ("", '{"error": "lost"}', "error frame", "lost", None),
        ("error", '{"message": "lost"}', "error frame", "no message", None),
        ("error", "lost", "error frame", "lost", None),
        ("", "lost", "malformed chunk", "JSON is malformed: invalid character (byte 0)", None),
        ("", '{"choices": 3}', "malformed chunk", "Expected `array`, got `int` - at `$.choices`", None),
    ],
)
def test_error_frames_and_nonsense_are_failures(
    name: str, data: str, kind: str, message: str, status: int | None
) -> None:
    with pytest.raises(RequestFailed) as caught:
        CompletionStream().observe(ServerEvent(data, name), 0.0)

    assert (caught.value.kind, caught.value.message, caught.value.status) == (kind, message, status)


def test_what_came_of_a_stopped_stream() -> None:
    assert play().so_far() is None
    came = play(text("a"), text("b"), text("c")).so_far()
    assert came is not None
    assert (came.output_tokens, came.first_s, came.last_s, came.finish_reason) == (3, 1.0, 3.0, "stopped")
