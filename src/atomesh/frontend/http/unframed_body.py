"""Answers to HTTP/1.0, which knows no chunks: the body as it is, and its end is the connection's."""

from starlette.types import Message, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def without_chunks(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """`app`, whose answer to an HTTP/1.0 request `cycle` sends without framing unless its length is known.

    uvicorn closes such a connection after the answer in any case.
    """
    if cycle.scope["http_version"] != "1.0":
        return app

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, UnframedSend(cycle))  # type: ignore[arg-type]

    return answer  # type: ignore[return-value]


class UnframedSend:
    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._is_unframed = False

    async def __call__(self, message: Message) -> None:
        cycle = self._cycle
        while cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if message["type"] == "http.response.start":
            message = self._start(message)
        elif self._is_unframed:  # each piece is all that uvicorn still awaits
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)  # type: ignore[arg-type]

    def _start(self, message: Message) -> Message:
        headers = [one for one in message.get("headers", ()) if one[0].lower() != b"transfer-encoding"]
        if all(name.lower() != b"content-length" for name, _ in headers):
            self._is_unframed = True
            self._cycle.chunked_encoding = False
        return {**message, "headers": headers}
