"""A text server's answer on its way to the client: whole, or frame by frame, its errors in our shape."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Send

from atomesh.errors import AtomeshError, EngineError
from atomesh.frontend.http.sse import EventStream
from atomesh.mesh.backends.foreign_errors import to_error_in_stream
from atomesh.mesh.backends.http_client import HttpClient, StreamedAnswer
from atomesh.mesh.backends.sse_reader import SseReader, data_of
from atomesh.mesh.backends.worker_lost import WorkerLostError

DONE_FRAME = b"data: [DONE]"
# What ends a stream begins with one of these, whoever sends it; other frames are not looked into.
LAST_STARTS = (DONE_FRAME, b"event: error", b'data: {"error"', b'data:{"error"')
RESPONSES = "/v1/responses"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class RelayCall:
    """One request, as the server shall get it; the times are FrontendOptions'."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    send: Send
    hold_s: float
    keep_alive_s: float


async def relay_answer(client: HttpClient, call: RelayCall) -> None:
    """Raises AtomeshError before anything was sent; after that a stream ends with an error frame and a cut.

    A WorkerLostError before anything was sent says that nobody was there.
    """
    async with client.ask("POST", call.path, call.body, call.headers) as answer:
        if answer.content_type.partition(";")[0].strip().lower() == EVENT_STREAM:
            await _relay_frames(answer, call)
        else:
            await _relay_whole(answer, call.send)


async def _relay_whole(answer: StreamedAnswer, send: Send) -> None:
    try:
        body = await answer.whole()
    except WorkerLostError:
        raise EngineError("the server broke off its answer; send the request again") from None
    headers = [
        (b"content-type", answer.content_type.encode("latin-1", "replace") or b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _relay_frames(answer: StreamedAnswer, call: RelayCall) -> None:
    """A stream without its end would be taken for a whole one: it is cut, so that clients notice."""
    events = EventStream(call.send, tuple)
    try:
        async with events.kept_alive(call.hold_s, call.keep_alive_s):
            is_done = await _copy(answer, events)
    except WorkerLostError:
        is_done = False
    except AtomeshError as error:
        await events.fail(error)
        return
    if is_done:
        await events.finish(b"")
    elif call.path == RESPONSES and is_done is None:  # which ends without a [DONE]
        await call.send({"type": "http.response.body", "body": b""})
    else:
        await events.fail(EngineError("the server broke off its answer; send the request again"))


async def _copy(answer: StreamedAnswer, events: EventStream) -> bool | None:
    """Whole frames, as they come, one write a chunk. Whether [DONE] has come; None for an end without it."""
    reader = SseReader()
    async for chunk in answer.chunks():
        frames = reader.feed(chunk)
        last = next((place for place, frame in enumerate(frames) if frame.startswith(LAST_STARTS)), None)
        if (good := b"".join(frames[:last])) != b"":
            await events.write(good)
        if last is not None:
            if frames[last].startswith(DONE_FRAME):
                return True
            raise _error_of(frames[last])
    return None if events.is_started and reader.is_between_frames else False


def _error_of(frame: bytes) -> AtomeshError:
    try:
        document: Any = msgspec.json.decode(data_of(frame))
    except msgspec.DecodeError:
        document = {}
    inner = document.get("error", document) if isinstance(document, dict) else {}
    return to_error_in_stream(inner if isinstance(inner, dict) else {"message": str(inner)})
