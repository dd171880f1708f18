"""The cluster at one moment, as frozen records: what placement and everyone else but the registry may see."""

from dataclasses import dataclass
from typing import Literal

from atomesh.mesh.cluster.breaker import CLOSED, Breaker
from atomesh.protocol.kv_layout import KVLayout, difference
from atomesh.protocol.worker import PRESETS, LoadReport, RoleWeights, WorkerDescription

WorkerState = Literal["connecting", "ready", "draining", "lost"]
UNIFIED = PRESETS["unified"]
FRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """`description` is the last one heard, also of a lost worker; `heard_at` is in seconds on our clock.

    `in_flight` and `dispatched` count this gateway's legs: those not over yet, and all so far. Of those in
    flight, `prefill_tokens` counts the prompt tokens still to be computed and `prefill_quadratic` their
    Σ(n² − m²), `sequences` the choices, `decoding` those of them that decode here or will, and
    `context_tokens` what these attend to.
    """

    address: str
    state: WorkerState
    description: WorkerDescription | None
    load: LoadReport
    heard_at: float
    in_flight: int
    dispatched: int
    weights: RoleWeights = UNIFIED
    prefill_tokens: int = 0
    prefill_quadratic: int = 0
    sequences: int = 0
    decoding: int = 0
    context_tokens: int = 0
    breaker: Breaker = CLOSED

    @property
    def model_name(self) -> str | None:
        return None if self.description is None else self.description.model.name

    @property
    def incarnation(self) -> str:
        return "" if self.description is None else self.description.incarnation

    def is_silent(self, now: float) -> bool:
        """It may hang: there has been no word of it for more than FRESH_S."""
        return now - self.heard_at > FRESH_S


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    workers: tuple[WorkerSnapshot, ...]

    def ready(self, model: str) -> tuple[WorkerSnapshot, ...]:
        """The workers that take new work for `model`."""
        return tuple(w for w in self.workers if w.state == "ready" and w.model_name == model)


def layout_difference(one: WorkerSnapshot, other: WorkerSnapshot) -> str | None:
    """What keeps two workers of one model from using each other's KV, and each other's tokens.

    None when nothing does, and when one of them has not said how its KV lies.
    """
    ours, theirs = _layout(one), _layout(other)
    return None if ours is None or theirs is None else difference(ours, theirs)


def can_hand_off(prefill: WorkerSnapshot, decode: WorkerSnapshot) -> bool:
    """Both have a KV plane, and their KV is the same kind."""
    return (
        prefill is not decode
        and _has_kv_plane(prefill)
        and _has_kv_plane(decode)
        and layout_difference(prefill, decode) is None
    )


def _has_kv_plane(worker: WorkerSnapshot) -> bool:
    told = worker.description
    return told is not None and told.kv_address is not None and told.kv_layout is not None


def _layout(worker: WorkerSnapshot) -> KVLayout | None:
    return None if worker.description is None else worker.description.kv_layout
