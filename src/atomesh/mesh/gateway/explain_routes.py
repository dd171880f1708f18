"""GET /explain/{id}: why an answer's requests went where they went, for the operator."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

from atomesh.errors import NotFoundError
from atomesh.mesh.dispatch.explanations import ExplanationStore
from atomesh.mesh.gateway.auth import AdminGuard, KeyRing
from atomesh.mesh.gateway.explain_page import describe_accounts

EXPLAIN_PREFIX = "/explain/"


class ExplainRoute:
    def __init__(self, store: ExplanationStore) -> None:
        self._store = store

    def behind(self, token: str) -> Route:
        """The route, for the holder of `token` alone."""
        guarded = AdminGuard(request_response(self._explain), KeyRing([token]))
        return Route(EXPLAIN_PREFIX + "{id}", guarded, methods=["GET"])

    def of_requests(self, request_ids: Sequence[str]) -> dict[str, Any]:
        """As a field of their answer, for whoever may ask for it."""
        accounts = [account for one in request_ids if (account := self._store.get(one)) is not None]
        answer_id = request_ids[0].rpartition("-")[0] if request_ids else ""
        return {"explain": describe_accounts(answer_id, accounts)} if accounts else {}

    async def _explain(self, request: Request) -> Response:
        answer_id = request.path_params["id"]
        accounts = self._store.of_answer(answer_id)
        if not accounts:
            raise NotFoundError(
                f"no answer {answer_id[:200]!r} is remembered, only the last {self._store.max_accounts} are: "
                "ask with the id that is in the answer, soon after it"
            )
        body = msgspec.json.encode(describe_accounts(answer_id, accounts))
        return Response(body, media_type="application/json")
