"""An OpenAI-compatible server on loopback that plays scripts: streams, refusals, error frames, cuts, stalls.

Each POST plays the next script; when they run out, the last is played again. A script is a list of bytes to
send as they stand, of `HOLD`, where the answer stands still until `release()`, and of `CUT`, where the
connection is aborted.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from aiohttp import web

DONE_FRAME: Final = b"data: [DONE]\n\n"


class Step(Enum):
    HOLD = "hold"
    CUT = "cut"


HOLD, CUT = Step.HOLD, Step.CUT


@dataclass(frozen=True, slots=True)
class Script:
    """`steps` of the body after a head of `status` and `headers`."""

    steps: Sequence[bytes | Step]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)


def frame(body: dict[str, Any], *, event: str = "") -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(body)}\n\n".encode()


def text_frame(text: str, *, finish: str | None = None, tokens: int | None = None, prompt: int = 0) -> bytes:
    """A completions chunk; `tokens` puts usage on it, as with continuous_usage_stats."""
    body: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    if tokens is not None:
        body["usage"] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    return frame(body)


def chat_frame(delta: dict[str, Any], *, finish: str | None = None) -> bytes:
    return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage_frame(prompt: int, completion: int) -> bytes:
    return frame({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def text_answer(texts: Sequence[str], *, prompt: int = 0) -> Script:
    """A good completions stream of one token a text, with its usage at the end."""
    frames = [text_frame(text) for text in texts]
    return Script([*frames, text_frame("", finish="length"), usage_frame(prompt, len(texts)), DONE_FRAME])


def chat_answer(texts: Sequence[str], *, prompt: int = 0) -> Script:
    """A good chat stream, the role ahead of the first token, with its usage at the end."""
    frames = [chat_frame({"content": text}) for text in texts]
    role = chat_frame({"role": "assistant", "content": ""})
    end = chat_frame({}, finish="stop")
    return Script([role, *frames, end, usage_frame(prompt, len(texts)), DONE_FRAME])


def refusal(status: int, message: str, *, param: str | None = None) -> Script:
    body = {"error": {"message": message, "type": "refused", "param": param, "code": status}}
    return Script([json.dumps(body).encode()], status=status, content_type="application/json")


class FakeOpenAIServer:
    """An async context manager.

    `bodies`, `headers`, `paths` and `peers` are of the POSTs received, in order; `idle` is set while none
    is being answered; `on_hold` is called when a script reaches HOLD. GETs of /v1/models play
    `models_scripts`, each once, and then list `models`.
    """

    def __init__(self, *scripts: Script, models: Sequence[str] = ("fake-model",)) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.peers: list[tuple[str, int]] = []
        self.on_hold: Callable[[], None] = lambda: None
        self.idle = asyncio.Event()
        self.idle.set()
        self.models_scripts: list[Script] = []
        self.url = ""
        self._scripts = scripts
        self._models = list(models)
        self._in_flight = 0
        self._released = asyncio.Event()
        self._runner: web.AppRunner | None = None

    def release(self) -> None:
        """Lets every stream that stands still, now or later, go on."""
        self._released.set()

    async def __aenter__(self) -> "FakeOpenAIServer":
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.release()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _list_models(self, request: web.Request) -> web.StreamResponse:
        if self.models_scripts:
            return await self._play(self.models_scripts.pop(0), request)
        return web.json_response({"object": "list", "data": [{"id": name} for name in self._models]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if request.transport is not None:
            self.peers.append(request.transport.get_extra_info("peername"))
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.json())
        script = self._scripts[min(len(self.bodies), len(self._scripts)) - 1]
        self._in_flight += 1
        self.idle.clear()
        try:
            return await self._play(script, request)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self.idle.set()

    async def _play(self, script: Script, request: web.Request) -> web.StreamResponse:
        headers = {"content-type": script.content_type, **script.headers}
        response = web.StreamResponse(status=script.status, headers=headers)
        await response.prepare(request)
        for step in script.steps:
            if step is HOLD:
                self.on_hold()
                await self._released.wait()
            elif isinstance(step, bytes):
                await response.write(step)
            elif request.transport is not None:
                request.transport.abort()
                return response
        await response.write_eof()
        return response
