"""The cluster at one moment, as frozen records: what placement and everyone else but the registry may see."""

from dataclasses import dataclass, field
from typing import Literal

from atomesh.mesh.cluster.breaker import CLOSED, Breaker
from atomesh.protocol.kv_layout import KVLayout, difference
from atomesh.protocol.worker import PRESETS, LoadReport, RoleWeights, WorkerDescription

WorkerState = Literal["connecting", "ready", "draining", "lost"]
ShownState = Literal["connecting", "ready", "silent", "draining", "lost"]
UNIFIED = PRESETS["unified"]
FRESH_S = 1.0
_ByModel = dict[str, "tuple[WorkerSnapshot, ...]"]


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """`description` is the last one heard, also of a lost worker; `heard_at` is in seconds on our clock.

    `in_flight` and `dispatched` count this gateway's legs: those not over yet, and all so far. Of those in
    flight, `prefill_tokens` counts the prompt tokens still to be computed and `prefill_quadratic` their
    Σ(n² − m²), `unbegun_tokens` those of them that came when the step was under way that the worker is at;
    `sequences` counts the choices, `decoding` those of them that decode here or will, and `context_tokens`
    what these attend to. One that `is_full` must be given nothing more for now.
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
    is_full: bool = False
    unbegun_tokens: int = 0

    @property
    def model_name(self) -> str | None:
        """None where it has not said hello, and where it takes no tokens."""
        told = self.description
        return None if told is None or told.texts else told.model.name

    @property
    def incarnation(self) -> str:
        return "" if self.description is None else self.description.incarnation

    @property
    def layout(self) -> KVLayout | None:
        """How its KV lies; None where it does not say."""
        return None if self.description is None else self.description.kv_layout

    @property
    def kv_plane(self) -> KVLayout | None:
        """What it can hand over and take in; None without a KV plane."""
        told = self.description
        return None if told is None or told.kv_address is None else told.kv_layout

    @property
    def is_idle(self) -> bool:
        """It has nothing to do, for us or for others."""
        return not (self.in_flight or self.load.running or self.load.waiting)

    def is_silent(self, now: float) -> bool:
        """It may hang: there has been no word of it for more than FRESH_S."""
        return now - self.heard_at > FRESH_S

    def shown_state(self, now: float) -> ShownState:
        """As operators see it: a worker that would be ready, had it only spoken lately, is silent."""
        return "silent" if self.state == "ready" and self.is_silent(now) else self.state


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    workers: tuple[WorkerSnapshot, ...]
    _ready: _ByModel = field(default_factory=dict, init=False, repr=False, compare=False)
    _offered: _ByModel = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_growing(self) -> bool:
        """Some have not said hello yet."""
        return any(worker.state == "connecting" for worker in self.workers)

    def ready(self, model: str) -> tuple[WorkerSnapshot, ...]:
        """The workers that take new work for `model`."""
        found = self._ready.get(model)
        if found is None:
            found = tuple([w for w in self.workers if w.state == "ready" and w.model_name == model])
            self._ready[model] = found
        return found

    def offered(self, model: str) -> tuple[WorkerSnapshot, ...]:
        """As `ready`, without those that are parked with both weights at 0."""
        found = self._offered.get(model)
        if found is None:
            found = tuple([w for w in self.ready(model) if w.weights.prefill or w.weights.decode])
            self._offered[model] = found
        return found


def layout_difference(one: WorkerSnapshot, other: WorkerSnapshot) -> str | None:
    """What keeps two workers of one model from using each other's KV, and each other's tokens.

    None when nothing does, and when one of them has not said how its KV lies.
    """
    ours, theirs = one.layout, other.layout
    return None if ours is None or theirs is None else difference(ours, theirs)


def can_hand_off(prefill: WorkerSnapshot, decode: WorkerSnapshot) -> bool:
    """Both have a KV plane, and their KV is the same kind."""
    ours = prefill.kv_plane
    return prefill is not decode and ours is not None and ours == decode.kv_plane
