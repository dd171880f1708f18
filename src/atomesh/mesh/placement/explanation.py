"""Why a request went where it went: every candidate with each of its terms, in seconds.

A decision keeps what it was made of. That is put into words when somebody reads it, and hardly anybody does.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.placement import Placement
from atomesh.mesh.placement.pricing import Option

MAX_SHOWN = 32  # of the options, the cheapest; a policy may nominate every worker that there is


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve the request. `terms` sum to `total_s`; `decode` is None where one worker does it all.

    `cached_tokens` are those of the prompt that the prefill worker is believed to hold.
    """

    prefill: str
    decode: str | None
    terms: Mapping[str, float]
    total_s: float
    cached_tokens: int = 0
    fetch_from: str | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """`ttft_s`: from the decision to the first token; `transfer_s`: what decode then waits for KV; `fetch_s`,
    part of `ttft_s`: what prefill waits for another worker's prefix, None where it asks for none."""

    cached_tokens: int
    ttft_s: float
    transfer_s: float
    fetch_s: float | None = None


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Who is in none of the options shown, by worker id.

    `asked` were all candidates, in their order, some of them in options. `dearer` were nominated for a role
    and not paired, `hidden` are in options beyond MAX_SHOWN. `barred` were no candidates, `excluded` of them
    by incarnation.
    """

    asked: tuple[str, ...]
    dearer: frozenset[str]
    hidden: frozenset[str]
    barred: tuple[WorkerSnapshot, ...]
    excluded: Collection[str]
    now: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """`options` are ordered, the cheapest first, which was chosen."""

    policy: str
    options: Sequence[Option]
    passed_over: PassedOver
    predicted: Predicted
    parameters: Mapping[str, float]

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(map(_candidate, self.options))

    @property
    def chosen(self) -> Candidate:
        return self.candidates[0]

    @property
    def runner_up(self) -> Candidate | None:
        return self.candidates[1] if len(self.candidates) > 1 else None

    @cached_property
    def rejected(self) -> tuple[Rejection, ...]:
        return tuple(self._rejected())

    def _rejected(self) -> Iterator[Rejection]:
        who = self.passed_over
        for worker in who.barred:
            yield Rejection(worker_id(worker), _why_barred(worker, who))
        shown = {name for one in self.candidates for name in (one.prefill, one.decode)}
        for name in who.asked:
            if name not in shown:
                yield Rejection(name, self._why_not_shown(name))

    def _why_not_shown(self, name: str) -> str:
        if name in self.passed_over.hidden:
            return f"dearer than the {len(self.options)} ways that are shown"
        is_dearer = name in self.passed_over.dearer
        return "others were cheaper for its role" if is_dearer else "not nominated by the policy"


@dataclass(frozen=True, slots=True)
class Decision:
    placement: Placement
    _explain: Callable[[], Explanation]

    @property
    def explanation(self) -> Explanation:
        """Made when it is asked for, each time. It holds much less than the decision does: to be kept."""
        return self._explain()


def worker_id(worker: WorkerSnapshot) -> str:
    """Its address, where it has not said."""
    return worker.address if worker.description is None else worker.description.worker_id


def _candidate(option: Option) -> Candidate:
    seat = option.prefill
    return Candidate(
        prefill=worker_id(seat.worker),
        decode=None if option.decode is None else worker_id(option.decode.worker),
        terms=option.terms,
        total_s=option.total_s,
        cached_tokens=seat.ready_tokens,
        fetch_from=None if seat.fetch_from is None else worker_id(seat.fetch_from),
    )


def _why_barred(worker: WorkerSnapshot, who: PassedOver) -> str:
    if worker.state != "ready":
        return worker.state
    if worker.incarnation in who.excluded:
        return "has failed this request"
    if not (worker.weights.prefill or worker.weights.decode):
        return "parked: both weights are 0"
    if not worker.breaker.lets_through(who.now):
        return worker.breaker.why_not(who.now)
    if worker.is_full:
        return f"full: it has {worker.in_flight} requests"
    return f"silent for {who.now - worker.heard_at:.1f} s"
