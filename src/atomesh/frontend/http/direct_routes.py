"""The routes that nearly every request takes, looked up by name rather than tried one after another."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atomesh.errors import AtomeshError
from atomesh.frontend.http.error_answers import error_response, internal_response
from atomesh.observability.request_record import record_of


class DirectRoutes:
    """ASGI layer: POST to one of `endpoints` goes to it, everything else inwards.

    An error that an endpoint raises before its response has begun is answered here, so that the layers around
    see the answer; what is no AtomeshError is raised on as well.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = self._endpoints.get(scope["path"]) if is_post else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        is_started = False

        async def noting_start(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await endpoint(scope, receive, noting_start)
        except Exception as error:
            ours = error if isinstance(error, AtomeshError) else None
            record_of(scope).error_type = (ours or AtomeshError).type
            if not is_started:
                answer = internal_response() if ours is None else error_response(ours)
                await answer(scope, receive, send)
            if is_started or ours is None:
                raise
