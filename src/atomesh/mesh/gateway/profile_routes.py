"""POST /start_profile and /stop_profile, for the operator: what the workers' steps do, as a Chrome trace."""

import asyncio
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

from atomesh.clock import Clock
from atomesh.errors import InvalidRequestError, NotFoundError, ServiceUnavailableError
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.gateway.admin_requests import read_json
from atomesh.mesh.gateway.auth import AdminGuard, KeyRing
from atomesh.observability.step_trace import WorkerTrace, chrome_trace
from atomesh.protocol.step_trace import DEFAULT_TRACE_S, MAX_TRACE_STEPS, StepTrace, TraceLimits
from atomesh.protocol.worker import nearest_role

PROFILE_PATHS = ("/start_profile", "/stop_profile")


class StartProfileBody(msgspec.Struct, frozen=True):
    """What to record: at most so long, and at most so many steps; without a worker's id, all of them."""

    seconds: float = DEFAULT_TRACE_S
    steps: int = MAX_TRACE_STEPS
    worker: str | None = None


class StopProfileBody(msgspec.Struct, frozen=True):
    worker: str | None = None


@runtime_checkable
class Profiled(Protocol):
    """A backend whose engine can tell what its steps do."""

    def start_profile(self, limits: TraceLimits) -> None: ...

    async def stop_profile(self) -> StepTrace | None: ...


class ProfileRoutes:
    def __init__(self, registry: WorkerRegistry, backends: Mapping[str, object], clock: Clock) -> None:
        """`backends` by worker address; those that are not Profiled are left out."""
        self._registry = registry
        self._backends = backends
        self._clock = clock

    def behind(self, token: str) -> list[Route]:
        """The routes, each for the holder of `token` alone."""
        ring = KeyRing([token])
        return [
            Route(path, AdminGuard(request_response(endpoint), ring), methods=["POST"])
            for path, endpoint in zip(PROFILE_PATHS, (self._start, self._stop), strict=True)
        ]

    async def _start(self, request: Request) -> Response:
        wanted = await read_json(request, StartProfileBody, if_empty=StartProfileBody())
        limits = TraceLimits(seconds=wanted.seconds, steps=wanted.steps)
        limits.check()
        chosen = self._choose(wanted.worker)
        for _, backend in chosen:
            backend.start_profile(limits)
        return _json(
            {
                "status": "ok",
                "workers": [_id(worker) for worker, _ in chosen],
                "seconds": limits.seconds,
                "steps": limits.steps,
            }
        )

    async def _stop(self, request: Request) -> Response:
        wanted = await read_json(request, StopProfileBody, if_empty=StopProfileBody())
        chosen = self._choose(wanted.worker)
        found = await asyncio.gather(*(self._ask(worker, backend) for worker, backend in chosen))
        traces = [trace for trace in found if trace is not None]
        if not traces:
            raise InvalidRequestError("no worker has recorded anything; send POST /start_profile first")
        return await asyncio.to_thread(lambda: _json(chrome_trace(traces)))

    async def _ask(self, worker: WorkerSnapshot, backend: Profiled) -> WorkerTrace | None:
        trace = await backend.stop_profile()
        if trace is None:
            return None
        began_at = self._clock.now() - trace.began_ago_s
        return WorkerTrace(_id(worker), nearest_role(worker.weights), began_at, trace)

    def _choose(self, worker_id: str | None) -> list[tuple[WorkerSnapshot, Profiled]]:
        """Raises NotFoundError for an id that no worker has, ServiceUnavailableError while there is none."""
        there = [
            (worker, backend)
            for worker in self._registry.snapshot().workers
            if worker.state in ("ready", "draining")
            and isinstance(backend := self._backends.get(worker.address), Profiled)
        ]
        if worker_id is not None:
            there = [pair for pair in there if _id(pair[0]) == worker_id]
            if not there:
                raise NotFoundError(
                    f"there is no worker {worker_id[:200]!r} that can be profiled; GET /workers lists them"
                )
        if not there:
            raise ServiceUnavailableError("no worker that can be profiled is connected; try again later")
        return there


def _id(worker: WorkerSnapshot) -> str:
    return "" if worker.description is None else worker.description.worker_id


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
