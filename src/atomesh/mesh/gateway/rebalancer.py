"""Roles moved between the pools as their load changes, or only said to be: GET /rebalance shows which."""

import asyncio
import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

from atomesh.clock import Clock
from atomesh.mesh.backends.pool import BackendPool
from atomesh.mesh.cluster.rebalance import Balance, Move, Pool, look
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.gateway.auth import AdminGuard, KeyRing
from atomesh.protocol.worker import PRESETS

_log = logging.getLogger(__name__)

PERIOD_S = 1.0
MAX_SHOWN = 32
REBALANCE_PATH = "/rebalance"
POOLS: tuple[Pool, ...] = ("prefill", "decode")

Mode = Literal["off", "dry-run", "on"]


class Rebalancer(Collector):
    """With "dry-run" it says what it would do, with "on" it does so. Counts both as a metric."""

    def __init__(self, mode: Mode, workers: BackendPool, registry: WorkerRegistry, clock: Clock) -> None:
        self._mode = mode
        self._workers = workers
        self._registry = registry
        self._clock = clock
        self._balances: dict[str, Balance] = {}
        self._moves: deque[tuple[float, Move]] = deque(maxlen=MAX_SHOWN)
        self._counts: Counter[Pool] = Counter()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if self._mode != "off":
                self.look()

    def look(self) -> None:
        cluster, now = self._registry.snapshot(), self._clock.now()
        models = {worker.model_name for worker in cluster.workers if worker.model_name is not None}
        balances = {model: self._balances.get(model, Balance()) for model in models}
        for model, before in balances.items():
            balances[model], move = look(before, cluster.ready(model), now)
            if move is not None:
                self._carry_out(move, now)
        self._balances = balances

    def behind(self, token: str) -> Route:
        """For the holder of `token` alone."""
        return Route(
            REBALANCE_PATH, AdminGuard(request_response(self._show), KeyRing([token])), methods=["GET"]
        )

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "atomesh_rebalance_moves", "Workers moved to a pool, or that would be.", labels=("to", "mode")
        )
        for pool in POOLS:
            family.add_metric((pool, self._mode), self._counts[pool])
        yield family

    def _carry_out(self, move: Move, now: float) -> None:
        self._moves.append((now, move))
        self._counts[move.to] += 1
        is_real = self._mode == "on"
        said = "moved" if is_real else "would be moved"
        _log.warning("worker %s %s to %s: %s", move.worker_id, said, move.to, _pressures(move))
        if is_real:
            self._workers[move.address].set_role(PRESETS[move.to])

    async def _show(self, _request: Request) -> Response:
        now = self._clock.now()
        moves: list[dict[str, Any]] = [
            {"seconds_ago": round(now - at, 3), **dataclasses.asdict(move)} for at, move in self._moves
        ]
        body = {"mode": self._mode, "moves": moves}
        return Response(msgspec.json.encode(body), media_type="application/json")


def _pressures(move: Move) -> str:
    return f"prefill {move.prefill_pressure:.2f}, decode {move.decode_pressure:.2f}"
