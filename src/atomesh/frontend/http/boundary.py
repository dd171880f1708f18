"""The outermost layer of a request: its id, its place in the metrics, an answer to errors raised inside."""

import re
from collections.abc import Sequence

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atomesh.errors import AtomeshError
from atomesh.frontend.http.error_answers import error_response, internal_response
from atomesh.frontend.http.request_id import choose_request_id, id_headers
from atomesh.observability.metrics import FrontendMetrics
from atomesh.observability.request_record import record_of

OTHER = "other"
_CONVERTER = re.compile(r":\w+(?=\})")


class Boundary:
    """The paths of `routes` may become labels, with {id} for what stands there; all others count as one."""

    def __init__(self, app: ASGIApp, metrics: FrontendMetrics, routes: Sequence[Route]) -> None:
        self._app = app
        self._metrics = metrics
        self._patterns = [route for route in routes if "{" in route.path]
        self._paths = frozenset({route.path for route in routes if "{" not in route.path})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, record = choose_request_id(scope["headers"]), record_of(scope)
        record.request_id, record.endpoint = request_id.decode(), self._endpoint(scope)
        is_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_started
            if not is_started:
                is_started = True
                message["headers"] = [*message.get("headers", ()), *id_headers(scope, request_id)]
                self._metrics.http_requests.labels(record.endpoint, str(message["status"])).inc()
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except AtomeshError as error:
            record.error_type = error.type
            if is_started:
                raise
            await error_response(error)(scope, receive, send_with_id)
        except Exception:
            record.error_type = AtomeshError.type
            if not is_started:
                await internal_response()(scope, receive, send_with_id)
            raise

    def _endpoint(self, scope: Scope) -> str:
        path: str = scope["path"]
        if path in self._paths:
            return path
        matches = [(route.matches(scope)[0], route) for route in self._patterns]
        for wanted in (Match.FULL, Match.PARTIAL):  # a partial one is asked with another method
            for match, route in matches:
                if match is wanted:
                    return _CONVERTER.sub("", route.path)
        return OTHER
