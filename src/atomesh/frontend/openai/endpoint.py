"""The way of every POST: read, decode, refuse, prepare, answer; a client that leaves ends it at any point."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import Generic, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from atomesh.frontend.context import COUNTED, OWNER, Frontend
from atomesh.frontend.http.direct_body import direct_body
from atomesh.frontend.http.disconnect import ClientDisconnectedError, run_until_disconnect
from atomesh.frontend.http.request_body import BodyDecoder, read_body
from atomesh.frontend.openai.call import Answering, Call, Plan, deadline
from atomesh.frontend.validation import parse_timeout, refuse_fields, refuse_internal_headers
from atomesh.observability.request_record import record_of

R = TypeVar("R", bound=msgspec.Struct)


class RequestDecoder(Generic[R]):
    """The body of the requests on `path`, under the rules that hold for all of them."""

    def __init__(
        self, frontend: Frontend, path: str, kind: type[R], own_fields: frozenset[str] = frozenset()
    ) -> None:
        """`own_fields` mean something else here than where they are refused."""
        self._frontend = frontend
        self._path = path
        self._decoder = BodyDecoder(kind)
        self._own_fields = own_fields

    async def decode(self, body: bytes) -> R:
        """Refused fields raise InvalidRequestError, unknown ones are counted."""
        decoded = await self._frontend.texts.run(len(body), lambda: self._decoder.decode(body))
        refuse_fields(decoded.fields, self._own_fields)
        if unknown := decoded.unknown_fields():
            self._frontend.metrics.unknown_fields.labels(self._path).inc(len(unknown))
        return decoded.request


class Endpoint(ABC, Generic[R]):
    """An ASGI application for one route; `kind` is the type of its requests."""

    path: str
    own_fields: frozenset[str] = frozenset()

    def __init__(self, frontend: Frontend, kind: type[R]) -> None:
        self.kind = kind
        self._frontend = frontend
        self._decoder = RequestDecoder(frontend, self.path, kind, self.own_fields)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received_at = self._frontend.clock.now()
        headers = Headers(scope=scope)
        try:
            refuse_internal_headers(headers)
            timeout_s = parse_timeout(headers, self._frontend.options.max_timeout_s)
            deadline_at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
            call = Call(
                headers=headers,
                send=send,
                received_at=received_at,
                timeout_s=timeout_s,
                deadline_at=deadline_at,
                find_model=self._frontend.seen_from(scope).find_model,
                record=record_of(scope),
                direct=direct_body(scope),
                owner=scope.get(OWNER, ""),
                counted=scope.get(COUNTED, nullcontext),
            )
            body = await read_body(headers, receive, self._frontend.options)
            await run_until_disconnect(receive, self._serve(call, body))
        except ClientDisconnectedError:
            record_of(scope).has_client_left = True
            self._frontend.metrics.disconnects.inc()

    async def _serve(self, call: Call, body: bytes) -> None:
        async with deadline(call):
            plan = await self._plan(call, await self._decoder.decode(body))
        await Answering(self._frontend, call, plan).run()

    @abstractmethod
    async def _plan(self, call: Call, request: R) -> Plan:
        """Everything that can refuse the request, before anything runs. Raises AtomeshError."""
