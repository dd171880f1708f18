"""GET /openapi.json: what this server may be asked."""

from collections.abc import Iterable
from functools import cache

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from atomesh.frontend.contract.document import make_document
from atomesh.frontend.http.json_text import encode_json

DOCUMENT_PATH = "/openapi.json"


def document_route(others: Iterable[Route]) -> Route:
    """Tells of the other routes and of itself; made when it is first asked for."""

    @cache
    def document() -> bytes:
        return encode_json(make_document([*others, route]))

    async def show(_request: Request) -> Response:
        return Response(document(), media_type="application/json")

    route = Route(DOCUMENT_PATH, show)
    return route
