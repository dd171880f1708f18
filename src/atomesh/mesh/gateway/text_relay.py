"""The way of a request whose model is another server's: its text goes there, and comes back, as it is.

read the body ─▶ whose model? ─▶ a text server's ─▶ its turn ─▶ ask one of them ─▶ frames or body ─▶ client
                        ╰──────▶ ours: handed on inwards, with the body as it came
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, DeadlineExceededError
from atomesh.frontend.context import SEEN_MODELS
from atomesh.frontend.http.direct_body import direct_body
from atomesh.frontend.http.disconnect import ClientDisconnectedError, run_until_disconnect
from atomesh.frontend.http.error_shapes import MESSAGES
from atomesh.frontend.http.request_body import read_body
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.validation import parse_timeout, refuse_internal_fields, refuse_internal_headers
from atomesh.mesh.backends.request_stream import UnreadAnswerError
from atomesh.mesh.dispatch.admitted_texts import AdmittedTexts
from atomesh.mesh.gateway.relayed_answer import RelayCall, RelayedAnswer
from atomesh.mesh.gateway.text_request import (
    Fields,
    field_of,
    for_server,
    parse_fields,
    stand_in,
    with_stable_prompt,
)
from atomesh.observability.metrics import FrontendMetrics
from atomesh.observability.relay_meter import RelayMeter
from atomesh.observability.request_record import RequestRecord, record_of

PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", MESSAGES})


@dataclass(frozen=True, slots=True)
class RelayFace:
    """What the relay shares with the routes: the models there are, the options, the metrics, the clock."""

    models: Callable[[], Sequence[ServedModel]]
    options: FrontendOptions
    metrics: FrontendMetrics
    clock: Clock


class TextRelay:
    """ASGI layer inside the tenants' guard: what it sees of models is what the caller may use."""

    def __init__(self, app: ASGIApp, face: RelayFace) -> None:
        self._app = app
        self._face = face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = self._seen(scope)
        if not any(model.is_relayed for model in models):
            await self._app(scope, receive, send)
            return
        received_at, headers = self._face.clock.now(), Headers(scope=scope)
        try:
            body = await read_body(headers, receive, self._face.options)
            fields = parse_fields(body)
            model = _text_model(models, field_of(fields, "model", str, ""))
            if model is None or not isinstance(model.service, AdmittedTexts):
                await self._app(scope, _replayed(body, receive), send)
                return
            refuse_internal_headers(headers)
            refuse_internal_fields(fields)
            call = _Call(scope, send, headers, with_stable_prompt(fields), received_at)
            await run_until_disconnect(receive, self._relay(call, model.name, model.service))
        except ClientDisconnectedError:
            self._face.metrics.disconnects.inc()
            record_of(scope).has_client_left = True

    def _seen(self, scope: Scope) -> Sequence[ServedModel]:
        """Nothing where it is no request for an answer."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in PATHS:
            return ()
        seen: Callable[[], Sequence[ServedModel]] = scope.get(SEEN_MODELS, self._face.models)
        return seen()

    async def _relay(self, call: "_Call", model: str, service: AdmittedTexts) -> None:
        face, record = self._face, record_of(call.scope)
        timeout_s = parse_timeout(call.headers, face.options.max_timeout_s)
        request = stand_in(call.fields, call.headers)
        _note_plan(record, model, request.request_id, call.fields)
        body = for_server(call.fields, model, may_set_priority=service.may_set_priority)
        asked = RelayCall(
            call.scope["path"],
            body,
            headers={"x-request-id": record.request_id},
            hold_s=face.options.hold_s,
            keep_alive_s=face.options.keep_alive_s,
            send=call.send,
            direct=direct_body(call.scope),
        )
        meter = RelayMeter(face.metrics.for_model(model), face.clock, call.received_at)
        answer = RelayedAnswer(asked, meter.saw_first_bytes)
        try:
            async with meter.until_end(), nullcontext() if timeout_s is None else _deadline(timeout_s):
                await service.relay(request, answer)
        except AtomeshError as error:
            if not answer.has_begun:
                raise
            record.error_type = error.type
            face.metrics.cut_streams.inc()
            if not isinstance(error, UnreadAnswerError):
                await answer.fail(error)
        finally:
            self._note_answer(record, answer, meter, len(request.prompt_token_ids))

    def _note_answer(
        self, record: RequestRecord, answer: RelayedAnswer, meter: RelayMeter, guessed_prompt: int
    ) -> None:
        """As far as it has come, however it ended."""
        usage = answer.usage
        record.prompt_tokens = guessed_prompt if usage.prompt_tokens is None else usage.prompt_tokens
        record.completion_tokens, record.cached_tokens = usage.completion_tokens, usage.cached_tokens
        record.finish_reasons = answer.finish_reasons
        meter.saw_end(record.prompt_tokens, usage.completion_tokens, record.finish_reasons)


@dataclass(frozen=True, slots=True)
class _Call:
    scope: Scope
    send: Send
    headers: Headers
    fields: Fields
    received_at: float


def _text_model(models: Sequence[ServedModel], wanted: str) -> ServedModel | None:
    """The model that is asked for, where it is a text server's."""
    found = next((one for one in models if wanted in (one.name, *one.aliases)), None)
    if found is None and not wanted:
        found = models[0]
    return found if found is not None and found.is_relayed else None


def _note_plan(record: RequestRecord, model: str, request_id: str, fields: Fields) -> None:
    record.model, record.answer_id, record.prompts = model, request_id, 1
    record.is_streamed = field_of(fields, "stream", bool, False)


@asynccontextmanager
async def _deadline(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceededError(
            f"the answer was not complete within x-request-timeout, {timeout_s:g} s; allow more time"
        ) from None


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
