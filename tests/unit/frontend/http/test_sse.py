import asyncio
from typing import Any

import pytest

from atomesh.errors import RateLimitError
from atomesh.frontend.http.sse import DONE, KEEP_ALIVE, EventStream, data_frame


class Sent:
    """An ASGI send that keeps what it was given."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.has_comment = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        if message.get("body") == KEEP_ALIVE:
            self.has_comment.set()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]


def test_headers_go_with_the_first_frame_and_the_end_is_one_write() -> None:
    sent = Sent()
    asked: list[int] = []

    def late_headers() -> list[tuple[bytes, bytes]]:
        asked.append(len(sent.messages))
        return [(b"x-late", b"1")]

    async def run() -> None:
        events = EventStream(sent, late_headers)
        await events.write(b"one")
        await events.write(b"two")
        await events.finish(b"last" + DONE)

    asyncio.run(run())
    assert asked == [0]
    assert (b"x-late", b"1") in sent.messages[0]["headers"]
    assert sent.bodies == [b"one", b"two", b"last" + DONE]
    assert [message.get("more_body", False) for message in sent.messages[1:]] == [True, True, False]


def test_an_error_before_the_first_frame_is_raised() -> None:
    sent = Sent()
    with pytest.raises(RateLimitError):
        asyncio.run(EventStream(sent, list).fail(RateLimitError("full"), b"frame"))
    assert sent.messages == []


def test_an_error_after_it_is_the_last_frame_of_an_unfinished_body() -> None:
    sent = Sent()

    async def run() -> None:
        events = EventStream(sent, list)
        await events.write(b"one")
        await events.fail(RateLimitError("full"), b"frame")

    asyncio.run(run())
    assert sent.bodies == [b"one", b"frame"]
    assert sent.messages[-1]["more_body"] is True


def test_comments_open_the_stream_and_end_with_the_block() -> None:
    sent = Sent()

    async def run() -> None:
        events = EventStream(sent, list)
        async with events.kept_alive(0.0, 60.0):
            await sent.has_comment.wait()
        assert len(asyncio.all_tasks()) == 1
        await events.finish(DONE)

    asyncio.run(run())
    assert sent.bodies == [KEEP_ALIVE, DONE]


class Direct:
    """Takes chunks while it is free."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.is_free = True

    def write(self, chunk: bytes) -> None:
        assert self.is_free
        self.chunks.append(chunk)


def test_only_frames_after_the_first_go_directly_and_none_while_the_client_is_slow() -> None:
    sent, direct = Sent(), Direct()

    async def run() -> list[bool]:
        events = EventStream(sent, list, direct)
        async with events.kept_alive(0.0, 60.0):
            await sent.has_comment.wait()
        free = [events.is_free]
        await events.write(b"one")
        free.append(events.is_free)
        await events.write(b"two")
        events.write_now(b"three")
        direct.is_free = False
        free.append(events.is_free)
        await events.write(b"four")
        await events.finish(DONE)
        return free

    assert asyncio.run(run()) == [False, True, False]
    assert direct.chunks == [b"two", b"three"]
    assert sent.bodies == [KEEP_ALIVE, b"one", b"four", DONE]


def test_a_frame_is_one_line_of_json() -> None:
    assert data_frame({"a": "x\n\u2028\u2029\x85é"}) == (
        b'data: {"a":"x\\n\\u2028\\u2029\\u0085' + "é".encode() + b'"}\n\n'
    )
