"""Workers as the operator sees them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from atomesh.mesh.cluster.breaker import Breaker
from atomesh.mesh.cluster.snapshot import ClusterSnapshot, WorkerSnapshot, layout_difference
from atomesh.protocol.frames import Inspected
from atomesh.protocol.worker import ModelDescription, RoleWeights, nearest_role


def describe_workers(
    cluster: ClusterSnapshot, now: float, failures: Mapping[str, str]
) -> list[dict[str, Any]]:
    """`failures` says of models that are not offered why. `not_offered` is that of the worker's model."""
    return [
        {
            **_describe(worker, cluster.workers, now),
            "not_offered": failures.get(worker.model_name or ""),
        }
        for worker in cluster.workers
    ]


def describe_weights(weights: RoleWeights) -> dict[str, Any]:
    return {"role": nearest_role(weights), "weights": msgspec.structs.asdict(weights)}


def describe_kv(worker: WorkerSnapshot, answer: Inspected | None, now: float) -> dict[str, Any]:
    """Every block by state and owner; nulls from a worker that did not answer. `balanced`: none missing."""
    return {
        "id": worker_name(worker),
        "state": worker.shown_state(now),
        "total": None if answer is None else answer.total,
        "states": None if answer is None else answer.states,
        "owners": None if answer is None else answer.owners,
        "balanced": None if answer is None else sum(answer.states.values()) == answer.total,
    }


def _describe(worker: WorkerSnapshot, cluster: Sequence[WorkerSnapshot], now: float) -> dict[str, Any]:
    told = worker.description
    is_there = worker.state in ("ready", "draining")
    return {
        "id": worker_name(worker),
        **({"role": None, "weights": None} if told is None else describe_weights(worker.weights)),
        "kind": None if told is None else told.engine,
        "pid": None if told is None else told.pid,
        "address": worker.address,
        "kv_address": None if told is None else told.kv_address,
        "state": worker.shown_state(now),
        "silent_s": round(max(now - worker.heard_at, 0.0), 3) if is_there else None,
        "incarnation": None if told is None else told.incarnation,
        "model": None if told is None else told.model.name,
        **({"models": [text.name for text in told.texts]} if told is not None and told.texts else {}),
        "engine": None if told is None else _engine(told.model),
        "in_flight": worker.in_flight,
        "dispatched": worker.dispatched,
        "breaker": _breaker(worker.breaker, now),
        "load": msgspec.structs.asdict(worker.load),
        "incompatible": _incompatible(worker, cluster),
    }


def _breaker(breaker: Breaker, now: float) -> dict[str, Any]:
    return {
        "state": breaker.state(now),
        "faults": breaker.faults,
        "retry_in_s": None if breaker.retry_at is None else round(max(breaker.retry_at - now, 0.0), 3),
    }


def _engine(model: ModelDescription) -> dict[str, Any]:
    return {
        "dtype": model.dtype,
        "max_model_len": model.max_model_len,
        "kv_tokens": model.kv_tokens,
        "kv_bytes": model.kv_bytes,
    }


def _incompatible(worker: WorkerSnapshot, cluster: Sequence[WorkerSnapshot]) -> list[dict[str, Any]]:
    """The workers of the same model that cannot use its KV, and the field that differs."""
    same_model = (other for other in cluster if other.model_name == worker.model_name)
    found = ((worker_name(other), layout_difference(worker, other)) for other in same_model)
    return [{"worker": other, "difference": reason} for other, reason in found if reason is not None]


def worker_name(worker: WorkerSnapshot) -> str:
    """Its own id; its address until it has said that."""
    return worker.address if worker.description is None else worker.description.worker_id
