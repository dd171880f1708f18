"""Routes for the operator: what the workers are doing, and what to tell them."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

from atomesh.mesh.cluster.registry import WorkerRegistry, WorkerSnapshot
from atomesh.mesh.gateway.auth import AdminGuard, KeyRing
from atomesh.protocol.worker import Role

ADMIN_PATHS = ("/workers", "/reset_prefix_cache")

_WEIGHTS: dict[Role, dict[str, float]] = {
    "unified": {"prefill": 1.0, "decode": 1.0},
    "prefill": {"prefill": 1.0, "decode": 0.0},
    "decode": {"prefill": 0.0, "decode": 1.0},
}


class CacheHolder(Protocol):
    def reset_prefix_cache(self) -> None: ...


def admin_routes(registry: WorkerRegistry, workers: Iterable[CacheHolder], token: str) -> list[Route]:
    ring = KeyRing([token])
    holders = tuple(workers)

    async def list_workers(_request: Request) -> Response:
        return _json({"workers": [_describe(worker) for worker in registry.snapshot().workers]})

    async def reset_prefix_cache(_request: Request) -> Response:
        for holder in holders:
            holder.reset_prefix_cache()
        return _json({"status": "ok"})

    def guarded(endpoint: Callable[[Request], Any]) -> AdminGuard:
        return AdminGuard(request_response(endpoint), ring)

    return [
        Route("/workers", guarded(list_workers), methods=["GET"]),
        Route("/reset_prefix_cache", guarded(reset_prefix_cache), methods=["POST"]),
    ]


def _describe(worker: WorkerSnapshot) -> dict[str, object]:
    told = worker.description
    return {
        "id": None if told is None else told.worker_id,
        "role": None if told is None else told.role,
        "weights": None if told is None else _WEIGHTS[told.role],
        "pid": None if told is None else told.pid,
        "address": worker.address,
        "state": worker.state,
        "incarnation": None if told is None else told.incarnation,
        "model": worker.model_name,
        "in_flight": worker.in_flight,
        "load": msgspec.structs.asdict(worker.load),
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
