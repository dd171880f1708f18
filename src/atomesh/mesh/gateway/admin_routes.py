"""Routes for the operator: what the workers are doing, and what to tell them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

from atomesh.clock import Clock
from atomesh.errors import ConfigurationError, InvalidRequestError, NotFoundError
from atomesh.mesh.backends.pool import BackendPool
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.dispatch.tickets import TicketOffice
from atomesh.mesh.gateway.admin_requests import Fault, NewWorker, RoleChange, read_flag, read_json
from atomesh.mesh.gateway.auth import AdminGuard, KeyRing
from atomesh.mesh.gateway.worker_page import describe_kv, describe_weights, describe_workers, worker_name
from atomesh.protocol.fault_points import check_shots
from atomesh.protocol.frames import SetFault

ADMIN_PATHS = ("/workers", "/reset_prefix_cache")
ADMIN_PREFIXES = ("/workers/", "/debug/")


@dataclass(frozen=True, slots=True)
class AdminRoutes:
    """`with_faults`: whether POST /debug/fault is there at all. `failures`: why models are not offered."""

    registry: WorkerRegistry
    workers: BackendPool
    office: TicketOffice
    with_faults: bool
    clock: Clock
    failures: Callable[[], Mapping[str, str]] = dict

    def behind(self, token: str) -> list[Route]:
        """The routes, each for the holder of `token` alone."""
        ring = KeyRing([token])

        def route(method: str, path: str, endpoint: Callable[[Request], Any]) -> Route:
            return Route(path, AdminGuard(request_response(endpoint), ring), methods=[method])

        routes = [
            route("GET", "/workers", self._list_workers),
            route("POST", "/workers", self._add_worker),
            route("DELETE", "/workers/{id:path}", self._remove_worker),
            route("POST", "/workers/{id}/role", self._set_role),
            route("POST", "/reset_prefix_cache", self._reset_prefix_cache),
            route("GET", "/debug/kv", self._inspect_kv),
        ]
        if self.with_faults:
            routes.append(route("POST", "/debug/fault", self._set_fault))
        return routes

    async def _list_workers(self, _request: Request) -> Response:
        cluster, now = self.registry.snapshot(), self.clock.now()
        return _json({"workers": describe_workers(cluster, now, self.failures())})

    async def _add_worker(self, request: Request) -> Response:
        wanted = await read_json(request, NewWorker)
        try:
            self.workers.add(wanted.address)
        except ConfigurationError as error:
            raise InvalidRequestError(error.message, param="address") from None
        return _json({"address": wanted.address, "state": self._state_at(wanted.address)})

    async def _remove_worker(self, request: Request) -> Response:
        worker = self._find(request.path_params["id"])
        if read_flag(request, "drain"):
            self.workers.drain(worker.address)
            return _json({"id": request.path_params["id"], "state": "draining"})
        self.workers.remove(worker.address)
        return _json({"id": request.path_params["id"], "state": "removed"})

    async def _set_role(self, request: Request) -> Response:
        worker = self._find(request.path_params["id"])
        weights = (await read_json(request, RoleChange)).chosen()
        self.workers[worker.address].set_role(weights)
        return _json({"id": request.path_params["id"], **describe_weights(weights)})

    async def _reset_prefix_cache(self, _request: Request) -> Response:
        for worker in self.workers.values():
            worker.reset_prefix_cache()
        return _json({"status": "ok"})

    async def _inspect_kv(self, _request: Request) -> Response:
        workers = self.registry.snapshot().workers
        asked = await asyncio.gather(*(self.workers[worker.address].inspect() for worker in workers))
        now = self.clock.now()
        answers = [describe_kv(worker, answer, now) for worker, answer in zip(workers, asked, strict=True)]
        return _json({"workers": answers, "open_tickets": self.office.num_open})

    async def _set_fault(self, request: Request) -> Response:
        fault = await read_json(request, Fault)
        check_shots(fault.point, fault.count)
        frame = SetFault(fault.point, fault.count, fault.argument)
        chosen = self.registry.snapshot().workers if fault.worker is None else (self._find(fault.worker),)
        willing = [worker for worker in chosen if worker.description and worker.description.takes_faults]
        if not willing:
            raise InvalidRequestError(
                "no worker that was asked takes faults; start it with --enable-faults too", param="worker"
            )
        for worker in willing:
            self.workers[worker.address].set_fault(frame)
        return _json({"status": "ok", "workers": len(willing)})

    def _state_at(self, address: str) -> str:
        now = self.clock.now()
        there = (one for one in self.registry.snapshot().workers if one.address == address)
        return next((worker.shown_state(now) for worker in there), "connecting")

    def _find(self, worker_id: str) -> WorkerSnapshot:
        """The connected worker of that id, else the lost one; one that never said its id goes by its address.

        Raises NotFoundError.
        """
        known = [worker for worker in self.registry.snapshot().workers if worker_name(worker) == worker_id]
        if not known:
            raise NotFoundError(f"there is no worker {worker_id[:200]!r}; GET /workers lists those there are")
        return min(known, key=lambda worker: worker.state == "lost")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
