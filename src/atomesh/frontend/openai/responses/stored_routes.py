"""What may be asked of a response that is there: itself, its input, its end, its deletion."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from atomesh.errors import InvalidRequestError
from atomesh.frontend.context import OWNER, Frontend
from atomesh.frontend.http.disconnect import ClientDisconnectedError, run_until_disconnect
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.openai.responses.event_log import EventLog, follow
from atomesh.frontend.openai.responses.items import Item
from atomesh.frontend.openai.responses.kept_responses import KeptResponses
from atomesh.frontend.openai.responses.stored_response import listed, not_found
from atomesh.frontend.options import FrontendOptions
from atomesh.observability.request_record import record_of

_MAX_PAGE = 100
_DEFAULT_PAGE = 20
_NUMBER = re.compile(r"-?[0-9]{1,10}")
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def stored_routes(frontend: Frontend, kept: KeptResponses) -> list[Route]:
    async def show(request: Request) -> Response:
        owner, response_id = _asked(request)
        if not _flag(request, "stream"):
            return _json(await kept.body(owner, response_id))
        log = kept.runs.log(owner, response_id)
        if log is None:
            await kept.body(owner, response_id)
            raise InvalidRequestError(
                "stream: this response has no events any more, or never ran in the background; leave "
                "stream out",
                param="stream",
            )
        place = _number(request, "starting_after", -1, (-1, 2**31)) + 1
        return _FollowResponse(log, place, frontend.options)

    async def delete(request: Request) -> Response:
        owner, response_id = _asked(request)
        await kept.delete(owner, response_id)
        return _json({"id": response_id, "object": "response", "deleted": True})

    async def cancel(request: Request) -> Response:
        return _json(await kept.cancel(*_asked(request)))

    async def list_input(request: Request) -> Response:
        items = await kept.input_items(*_asked(request))
        if _word(request, "order", "desc", ("asc", "desc")) == "desc":
            items.reverse()
        limit = _number(request, "limit", _DEFAULT_PAGE, (1, _MAX_PAGE))
        return _json(listed(items, _place_after(items, request.query_params.get("after")), limit))

    return [
        Route("/v1/responses/{id}", show, methods=["GET"]),
        Route("/v1/responses/{id}", delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", list_input, methods=["GET"]),
    ]


class _FollowResponse(Response):
    """A running response's events, from `place` on."""

    def __init__(self, log: EventLog, place: int, options: FrontendOptions) -> None:
        super().__init__()
        self._log = log
        self._place = place
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await run_until_disconnect(receive, follow(self._log, self._place, send, self._options))
        except ClientDisconnectedError:
            record_of(scope).has_client_left = True


def _asked(request: Request) -> tuple[str, str]:
    """The owner, and the response's id. Raises NotFoundError."""
    response_id: str = request.path_params["id"]
    if not response_id:
        raise not_found(response_id)
    return request.scope.get(OWNER, ""), response_id


def _flag(request: Request, name: str) -> bool:
    return _TRUTH[_word(request, name, "false", tuple(_TRUTH))]


def _word(request: Request, name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = request.query_params.get(name, default)
    if value not in allowed:
        raise InvalidRequestError(
            f"{name} is {value[:40]!r}; it must be one of {', '.join(allowed)}", param=name
        )
    return value


def _number(request: Request, name: str, default: int, bounds: tuple[int, int]) -> int:
    text = request.query_params.get(name, str(default))
    low, high = bounds
    value = int(text) if _NUMBER.fullmatch(text) else low - 1
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} is {text[:40]!r}; it must lie in [{low}, {high}]", param=name)
    return value


def _place_after(items: list[Item], item_id: str | None) -> int:
    if item_id is None:
        return 0
    for place, item in enumerate(items, start=1):
        if item["id"] == item_id:
            return place
    raise InvalidRequestError(
        f"after: there is no item {item_id[:80]!r} in this response's input", param="after"
    )


def _json(value: object) -> Response:
    return Response(encode_json(value), media_type="application/json")
