"""The way of a request whose model is another server's: its text goes there, and comes back, as it is.

read the body ─▶ whose model? ─▶ a text server's ─▶ ask it ─▶ frames or body ─▶ client
                        ╰──────▶ ours: handed on inwards, with the body as it came
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atomesh.errors import AtomeshError, DeadlineExceededError, ServiceUnavailableError
from atomesh.frontend.context import SEEN_MODELS
from atomesh.frontend.http.disconnect import ClientDisconnectedError, run_until_disconnect
from atomesh.frontend.http.error_answers import error_frame
from atomesh.frontend.http.request_body import read_body
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.validation import parse_timeout, refuse_internal_fields, refuse_internal_headers
from atomesh.mesh.backends.text_servers import TextServers
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.gateway.relayed_answer import RelayCall, relay_answer
from atomesh.observability.request_record import record_of

PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"})
RETRY_AFTER_S = 2
Fields = Mapping[str, msgspec.Raw]

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TextRelay:
    """ASGI layer inside the tenants' guard: what it sees of models is what the caller may use."""

    def __init__(
        self,
        app: ASGIApp,
        servers: TextServers,
        models: Callable[[], Sequence[ServedModel]],
        options: FrontendOptions,
    ) -> None:
        self._app = app
        self._servers = servers
        self._models = models
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._concerns(scope):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            body = await read_body(headers, receive, self._options)
            fields = _fields(body)
            model = self._text_model(scope, fields)
            if model is None:
                await self._app(scope, _replayed(body, receive), send)
                return
            refuse_internal_headers(headers)
            refuse_internal_fields(fields)
            timeout_s = parse_timeout(headers, self._options.max_timeout_s)
            await run_until_disconnect(receive, self._relay(scope, model, fields, _Sent(send), timeout_s))
        except ClientDisconnectedError:
            return

    def _concerns(self, scope: Scope) -> bool:
        return (
            scope["type"] == "http"
            and scope["method"] == "POST"
            and scope["path"] in PATHS
            and any(model.is_relayed for model in self._seen(scope))
        )

    def _seen(self, scope: Scope) -> Sequence[ServedModel]:
        seen: Callable[[], Sequence[ServedModel]] = scope.get(SEEN_MODELS, self._models)
        return seen()

    def _text_model(self, scope: Scope, fields: Fields) -> str | None:
        """The name of the model that is asked for, where it is a text server's."""
        models = self._seen(scope)
        wanted = _string(fields.get("model"))
        found = next((one for one in models if wanted in (one.name, *one.aliases)), None)
        if found is None and not wanted:
            found = models[0]
        return found.name if found is not None and found.is_relayed else None

    async def _relay(
        self, scope: Scope, model: str, fields: Fields, sent: "_Sent", timeout_s: float | None
    ) -> None:
        try:
            async with _deadline(timeout_s):
                await self._ask(scope, model, fields, sent)
        except AtomeshError as error:
            if not sent.is_started:
                raise
            await sent.fail(error)

    async def _ask(self, scope: Scope, model: str, fields: Fields, sent: "_Sent") -> None:
        """A server that cannot be reached has not seen the request: the next one is asked."""
        headers = {"x-request-id": record_of(scope).request_id}
        options = self._options
        for server in self._servers.of(model):
            named = {**fields, "model": msgspec.Raw(msgspec.json.encode(server.models[model].id))}
            body = msgspec.json.encode(named)
            call = RelayCall(scope["path"], body, headers, sent.send, options.hold_s, options.keep_alive_s)
            try:
                with server.busy():
                    await relay_answer(server.client, call)
            except WorkerLostError:
                server.models = {}
            else:
                return
        raise ServiceUnavailableError(
            f"no server of {model[:200]!r} answers now; try again in a few seconds",
            retry_after_s=RETRY_AFTER_S,
        )


class _Sent:
    """What has gone to the client so far."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def send(self, message: Message) -> None:
        self.is_started = True
        await self._send(message)

    async def fail(self, error: AtomeshError) -> None:
        """The response stays incomplete, so that the server cuts it off."""
        await self._send({"type": "http.response.body", "body": error_frame(error), "more_body": True})


@asynccontextmanager
async def _deadline(timeout_s: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceededError(
            f"the answer was not complete within x-request-timeout, {timeout_s:g} s; allow more time"
        ) from None


def _fields(body: bytes) -> Fields:
    """What is no JSON object is for the inner route to refuse, in its own words."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _string(raw: msgspec.Raw | None) -> str:
    try:
        return "" if raw is None else msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        return ""


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what really comes."""
    is_first = True

    async def receive_again() -> Message:
        nonlocal is_first
        if not is_first:
            return await receive()
        is_first = False
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
