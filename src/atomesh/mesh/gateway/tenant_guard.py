"""The door: who comes in, on whose account, and which models they see behind it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, PermissionDeniedError
from atomesh.frontend.context import OWNER, SEEN_MODELS
from atomesh.frontend.http.error_answers import error_response
from atomesh.frontend.http.sse import HeaderList
from atomesh.frontend.openai.call import POLICY_HEADER
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.validation import parse_timeout
from atomesh.mesh.admission.tenant import Tenant
from atomesh.mesh.dispatch.admitted_service import AdmittedService
from atomesh.mesh.dispatch.admitted_texts import AdmittedTexts
from atomesh.mesh.dispatch.visit import Caller
from atomesh.mesh.gateway.auth import api_key
from atomesh.mesh.gateway.limits import limit_headers
from atomesh.mesh.gateway.tenants import Seat, TenantDirectory
from atomesh.observability.request_record import record_of

MAX_TIMEOUT_S = 86_400.0
Models = Callable[[], Sequence[ServedModel]]


class TenantGuard:
    """ASGI layer: once there are keys, every path needs one of them, as a Bearer token or in `x-api-key`.

    But not `open_paths`, nor what begins with one of `open_prefixes`: who guards those does it by itself.
    What lies behind sees the caller's models, and generates on the caller's account, without knowing it.
    """

    def __init__(
        self,
        app: ASGIApp,
        tenants: TenantDirectory,
        models: Models,
        clock: Clock,
        open_paths: Iterable[str],
        open_prefixes: Iterable[str] = (),
    ) -> None:
        """`models` are all there are; those whose service is admitted run on a caller's account."""
        self._app = app
        self._tenants = tenants
        self._models = models
        self._clock = clock
        self._open_paths = frozenset(open_paths)
        self._open_prefixes = tuple(open_prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        seat = self._tenants.seat_of(api_key(scope))
        response = _LimitedResponse(send, lambda: limit_headers(seat.limits.allowances(self._clock.now())))
        try:
            check_permissions(seat.tenant, Headers(scope=scope))
            scope[OWNER] = seat.tenant.name
            scope[SEEN_MODELS] = self._seen_by(self._admit(seat, scope))
            await self._app(scope, receive, response.send)
        except AtomeshError as error:
            if response.is_started:
                raise
            record_of(scope).error_type = error.type
            await error_response(error)(scope, receive, response.send)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(self._open_prefixes)

    def _admit(self, seat: Seat, scope: Scope) -> Caller:
        """Only what may generate counts against a limit. Raises RateLimitError, InvalidRequestError."""
        if scope["method"] != "POST":
            return Caller(seat.tenant, seat.limits)
        now = self._clock.now()
        timeout_s = parse_timeout(Headers(scope=scope), MAX_TIMEOUT_S)
        seat.limits.take_request(now)
        return Caller(seat.tenant, seat.limits, None if timeout_s is None else now + timeout_s)

    def _seen_by(self, caller: Caller) -> Models:
        return lambda: [
            on_account_of(model, caller)
            for model in self._models()
            if caller.tenant.may_use((model.name, *model.aliases))
        ]


class _LimitedResponse:
    """`send` adds what is left of the caller's limits when the response starts."""

    def __init__(self, send: Send, limits: Callable[[], HeaderList]) -> None:
        self._send = send
        self._limits = limits
        self.is_started = False

    async def send(self, message: Message) -> None:
        if not self.is_started:
            self.is_started = True
            message["headers"] = [*message.get("headers", ()), *self._limits()]
        await self._send(message)


def on_account_of(model: ServedModel, caller: Caller) -> ServedModel:
    service = model.service
    if not isinstance(service, AdmittedService | AdmittedTexts):
        return model
    return replace(model, service=service.on_account_of(caller))


def check_permissions(tenant: Tenant, headers: Headers) -> None:
    """Raises PermissionDeniedError for a header whose effect is not for this tenant."""
    for name, is_allowed in (
        ("x-explain", tenant.may_explain),
        (POLICY_HEADER, tenant.may_choose_policy),
    ):
        if not is_allowed and name in headers:
            raise PermissionDeniedError(
                f"this key may not send the header {name}; leave it out, or ask the operator to allow it",
                param=name,
            )
