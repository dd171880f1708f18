"""GET /tenants, for the operator: who uses what."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

from atomesh.clock import Clock
from atomesh.mesh.admission.admission import Admission
from atomesh.mesh.gateway.auth import AdminGuard, KeyRing
from atomesh.mesh.gateway.tenants import Seat, TenantDirectory

TENANTS_PATH = "/tenants"


class TenantRoute:
    """`lines` are the admissions of all models, as they are now."""

    def __init__(
        self, directory: TenantDirectory, lines: Callable[[], Sequence[Admission]], clock: Clock
    ) -> None:
        self._directory = directory
        self._lines = lines
        self._clock = clock

    def behind(self, token: str) -> Route:
        return Route("/tenants", AdminGuard(request_response(self._list), KeyRing([token])), methods=["GET"])

    async def _list(self, _request: Request) -> Response:
        tenants = [self._describe(seat) for seat in self._directory]
        return Response(msgspec.json.encode({"tenants": tenants}), media_type="application/json")

    def _describe(self, seat: Seat) -> dict[str, Any]:
        tenant, lines = seat.tenant, self._lines()
        return {
            "name": tenant.name,
            "models": None if tenant.models is None else sorted(tenant.models),
            "weight": tenant.weight,
            "priority": tenant.priority_class,
            "waiting": sum(line.waiting_of(tenant.name) for line in lines),
            "running": sum(line.running_of(tenant.name) for line in lines),
            "cost": round(sum(line.cost_of(tenant.name) for line in lines), 6),
            "limits": {
                unit: {"limit": left.limit, "remaining": left.remaining}
                for unit, left in seat.limits.allowances(self._clock.now()).items()
            },
        }
