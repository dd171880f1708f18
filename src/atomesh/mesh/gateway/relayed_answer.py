"""A text server's answer on its way to the client: whole, or frame by frame, its errors in our shape."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.types import Message, Send

from atomesh.errors import AtomeshError
from atomesh.frontend.http.direct_body import DirectBody
from atomesh.frontend.http.error_answers import error_frame_of
from atomesh.frontend.http.error_shapes import MESSAGES
from atomesh.frontend.http.sse import DONE, EventStream
from atomesh.mesh.backends.foreign_errors import read_json, to_error_in_stream
from atomesh.mesh.backends.http_client import StreamedAnswer
from atomesh.mesh.backends.request_stream import UnreadAnswerError
from atomesh.mesh.backends.sse_reader import data_of
from atomesh.mesh.backends.text_servers import TextServer
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.dispatch.text_ask import TextUsage
from atomesh.mesh.gateway.answer_counts import believable, finish_reasons_in, usage_in
from atomesh.mesh.gateway.passed_frames import PassedFrames

RESPONSES = "/v1/responses"
MESSAGE_STOP = b"event: message_stop"
EVENT_STREAM = "text/event-stream"
UNREAD_S = 30.0  # a server's place is not kept longer for a client that reads nothing
JSON = "application/json"
_CONTENT_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+[\x20-\x7e]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class RelayCall:
    """One request, as any server shall get it, and where its answer goes; the times are FrontendOptions'."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    hold_s: float
    keep_alive_s: float
    send: Send
    direct: DirectBody


class RelayedAnswer:
    """Implements `dispatch.text_ask.TextAsk`."""

    def __init__(self, call: RelayCall, on_first_bytes: Callable[[], None]) -> None:
        self._call = call
        self._send = call.send
        self._on_first_bytes = on_first_bytes
        self._frames = PassedFrames()
        self._body = b""
        self._num_read, self._usage = 0, TextUsage(is_guess=True)  # of so many bytes
        self.has_begun = False

    @property
    def usage(self) -> TextUsage:
        """A stream that does not say is taken to have a token in each frame."""
        num_passed = len(self._body) + self._frames.num_bytes
        if num_passed != self._num_read:
            self._num_read, self._usage = num_passed, self._read_usage(num_passed)
        return self._usage

    def _read_usage(self, num_passed: int) -> TextUsage:
        found = usage_in(self._body or self._frames.tail)
        if found is None:
            return TextUsage(self._frames.num_frames, is_guess=True)
        return believable(found, len(self._call.body), num_passed)

    @property
    def finish_reasons(self) -> list[str]:
        return finish_reasons_in(self._body or self._frames.tail)

    async def send_to(self, server: TextServer, began: Callable[[], None]) -> None:
        """Once `has_begun`, whoever hears of its error must `fail` the answer."""
        call = self._call
        async with server.client.ask("POST", call.path, call.body, call.headers) as answer:
            if answer.content_type.partition(";")[0].strip().lower() == EVENT_STREAM:
                await self._relay_frames(answer, began)
                answer.is_enough = True
            else:
                await self._relay_whole(answer, began)

    async def fail(self, error: AtomeshError) -> None:
        """The response stays incomplete, so that the server cuts it off."""
        call = self._call
        frame = error_frame_of(call.path, error, call.headers.get("x-request-id", ""))
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def _relay_whole(self, answer: StreamedAnswer, began: Callable[[], None]) -> None:
        self._body = await answer.whole()
        began()
        self._on_first_bytes()
        headers = [
            (b"content-type", _content_type(answer).encode()),
            (b"content-length", str(len(self._body)).encode()),
        ]
        await self._pass({"type": "http.response.start", "status": 200, "headers": headers})
        await _while_read(self._pass({"type": "http.response.body", "body": self._body}))

    async def _relay_frames(self, answer: StreamedAnswer, began: Callable[[], None]) -> None:
        """A stream without its end would be taken for a whole one: it is cut, so that clients notice."""
        frames = self._frames = PassedFrames()
        events = EventStream(self._pass, tuple, self._call.direct)
        async with events.kept_alive(self._call.hold_s, self._call.keep_alive_s):
            await self._copy(answer, events, began)
        if frames.is_done:
            await _while_read(events.finish(b"" if self._call.path == MESSAGES else DONE))
        elif frames.last is not None:
            raise _error_of(frames.last)
        elif self._is_complete(frames):
            await _while_read(self._pass({"type": "http.response.body", "body": b""}))
        else:
            raise WorkerLostError

    async def _copy(self, answer: StreamedAnswer, events: EventStream, began: Callable[[], None]) -> None:
        """As it comes, one write a read."""
        frames, has_frames = self._frames, False
        while frames.last is None and (chunk := await answer.read()):
            good = frames.feed(chunk)
            if good and events.is_free:
                events.write_now(good)
            elif good:
                if not has_frames:
                    has_frames = True
                    began()
                    self._on_first_bytes()
                await _while_read(events.write(good))

    def _is_complete(self, frames: PassedFrames) -> bool:
        """Responses end without a [DONE], messages with an event of their own."""
        if frames.num_frames == 0 or not frames.is_between_frames:
            return False
        path = self._call.path
        return path == RESPONSES or (path == MESSAGES and MESSAGE_STOP in frames.tail)

    async def _pass(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


async def _while_read(writing: Awaitable[None]) -> None:
    """Raises UnreadAnswerError when the client takes nothing for UNREAD_S."""
    try:
        async with asyncio.timeout(UNREAD_S) as limit:
            await writing
    except TimeoutError:
        if not limit.expired():
            raise
        raise UnreadAnswerError(
            f"the answer was given up: its client has read nothing for {UNREAD_S:g} s; read faster"
        ) from None


def _content_type(answer: StreamedAnswer) -> str:
    """What is no header of ours to send is taken for the one kind of answer that there is."""
    return answer.content_type if _CONTENT_TYPE.fullmatch(answer.content_type) else JSON


def _error_of(frame: bytes) -> AtomeshError:
    document = read_json(data_of(frame))
    inner = document.get("error", document) if isinstance(document, dict) else {}
    return to_error_in_stream(inner if isinstance(inner, dict) else {"message": str(inner)})
