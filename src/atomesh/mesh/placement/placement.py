"""Where a request, or the rest of one, may be served: the workers, and the ways that their roles allow."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from atomesh.errors import ServiceUnavailableError
from atomesh.mesh.cluster.breaker import CLOSED
from atomesh.mesh.cluster.snapshot import FRESH_S, ClusterSnapshot, WorkerSnapshot, layout_difference
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.kv_layout import KVLayout, difference

RETRY_AFTER_S = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unified:
    """All of it on one worker; `is_fallback` when only because no pair could be had.

    `cached_tokens` of the prompt are believed to be there; with `fetch_from`, once that worker has sent them,
    which is worth waiting `patience_s` for.
    """

    worker: WorkerSnapshot
    is_fallback: bool = False
    cached_tokens: int = 0
    fetch_from: WorkerSnapshot | None = None
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillDecode:
    """`cached_tokens`, `fetch_from` and `patience_s` are the prefill worker's, as Unified's."""

    prefill: WorkerSnapshot
    decode: WorkerSnapshot
    cached_tokens: int = 0
    fetch_from: WorkerSnapshot | None = None
    patience_s: float = 0.0


Placement = Unified | PrefillDecode


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """With `require_disaggregation`, no worker does both prefill and decode of a request, nor of what is
    missing of an answer; but what a transfer has lost is computed by the decode worker it was meant for.

    Without `may_fall_back`, none does so against its role: others are still starting. With `may_fetch`,
    workers can have a prefix sent to them by another that holds it.
    """

    require_disaggregation: bool = False
    may_fall_back: bool = True
    may_fetch: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """`fresh` may take new work; so may the others of the `ready`, once they are no longer silent or full."""

    ready: tuple[WorkerSnapshot, ...]
    fresh: tuple[WorkerSnapshot, ...]


def candidates(
    model: str, cluster: ClusterSnapshot, now: float, excluded: Collection[str] = ()
) -> Candidates:
    """The ready workers that are not excluded, by incarnation, not parked with both weights at 0, and whose
    circuit breakers let something through.

    Raises ServiceUnavailableError when there is none.
    """
    able: Sequence[WorkerSnapshot] = cluster.offered(model)
    if excluded:
        able = [worker for worker in able if worker.incarnation not in excluded]
    ready = tuple([one for one in able if one.breaker is CLOSED or one.breaker.lets_through(now)])
    if able and not ready:
        raise ServiceUnavailableError(
            f"every worker that could serve {model!r} has failed again and again; try again in a few seconds",
            retry_after_s=RETRY_AFTER_S,
        )
    if not ready and any(worker.incarnation not in excluded for worker in cluster.ready(model)):
        raise ServiceUnavailableError(
            f"every worker that serves {model!r} is parked, with both weights at 0; the operator may give "
            "one a role",
            retry_after_s=RETRY_AFTER_S,
        )
    if not ready:
        raise ServiceUnavailableError(
            f"no worker is ready to serve {model!r} yet; try again in a few seconds",
            retry_after_s=RETRY_AFTER_S,
        )
    fresh = [one for one in ready if now - one.heard_at <= FRESH_S and not one.is_full]
    return Candidates(ready, tuple(fresh))


def choose(found: Candidates, find: Callable[[Sequence[WorkerSnapshot]], T]) -> T | None:
    """What `find` finds among those that are not silent; None when it would take a silent one.

    Such a one gets no new work, but is soon heard again or lost: worth waiting for. Raises the
    ServiceUnavailableError of `find` where the silent would be no help either.
    """
    try:
        return find(found.fresh)
    except ServiceUnavailableError:
        find(found.ready)
        return None


@dataclass(frozen=True, slots=True)
class Rest:
    """What is missing of an answer to `request` that `like` has begun.

    `num_tokens` are there already, of prompt and answer; `choices` are still open.
    """

    like: WorkerSnapshot
    num_tokens: int
    choices: int
    request: GenerationRequest


def rest_options(rest: Rest, workers: Iterable[WorkerSnapshot], rules: PlacementRules) -> list[Placement]:
    """Who may go on with an answer: anybody, but those with other weights; a pair where one is required.

    Never empty. Raises ServiceUnavailableError when there is nobody.
    """
    same = [worker for worker in workers if layout_difference(worker, rest.like) is None]
    if rules.require_disaggregation:
        return options(same, rules)
    decoders = [worker for worker in same if worker.weights.decode] or same
    if not decoders:
        raise ServiceUnavailableError(
            "no other worker can go on with this answer; send the request again", retry_after_s=RETRY_AFTER_S
        )
    return [Unified(worker, is_fallback=True) for worker in decoders]


def options(workers: Sequence[WorkerSnapshot], rules: PlacementRules) -> list[Placement]:
    """Every placement that the roles allow, and if there is none, those that they do not. Never empty.

    Raises ServiceUnavailableError when disaggregation is required and cannot be had, when there are workers
    for both roles but none of them could use the other's KV, and where there are no workers.
    """
    found: list[Placement] = [PrefillDecode(prefill, decode) for prefill, decode in _pairs(workers)]
    found += [Unified(worker) for worker in _whole(workers, rules)]
    return found or _against_their_roles(workers, rules)


def check_options(workers: Sequence[WorkerSnapshot], rules: PlacementRules) -> None:
    """Raises as `options` does, in a time that does not grow with the pairs that there are."""
    if next(_whole(workers, rules), None) is None and next(_pairs(workers), None) is None:
        _against_their_roles(workers, rules)


def _whole(workers: Iterable[WorkerSnapshot], rules: PlacementRules) -> Iterator[WorkerSnapshot]:
    """Those that may do both steps of one request."""
    if not rules.require_disaggregation:
        yield from (worker for worker in workers if worker.weights.prefill and worker.weights.decode)


def _pairs(workers: Sequence[WorkerSnapshot]) -> Iterator[tuple[WorkerSnapshot, WorkerSnapshot]]:
    """Every two that may share a request, by their roles and by their KV; each worker is looked at once."""
    decodes: dict[KVLayout, list[WorkerSnapshot]] = {}
    for worker in workers:
        if worker.weights.decode and (layout := worker.kv_plane) is not None:
            decodes.setdefault(layout, []).append(worker)
    for prefill in workers if decodes else ():
        if prefill.weights.prefill and (layout := prefill.kv_plane) is not None:
            yield from ((prefill, one) for one in decodes.get(layout, ()) if one is not prefill)


def _against_their_roles(workers: Sequence[WorkerSnapshot], rules: PlacementRules) -> list[Placement]:
    """What is left where the roles allow nothing: whoever there is does it all. Raises as `options`."""
    if not workers:
        raise ServiceUnavailableError(
            "no worker that could do it has been heard of within the last second; try again in a few seconds",
            retry_after_s=RETRY_AFTER_S,
        )
    if (reason := _mismatch(workers)) is not None:
        raise ServiceUnavailableError(
            f"the prefill and the decode worker cannot share KV: {reason}; start both with the same flags"
        )
    if rules.require_disaggregation:
        raise ServiceUnavailableError(
            "prefill and decode must run on different workers, and no such pair is ready; try again soon",
            retry_after_s=RETRY_AFTER_S,
        )
    if not rules.may_fall_back:
        raise ServiceUnavailableError(
            "the workers are still starting; try again in a few seconds", retry_after_s=RETRY_AFTER_S
        )
    local = [worker for worker in workers if worker.weights.decode] or workers
    return [Unified(worker, is_fallback=True) for worker in local]


def _mismatch(workers: Iterable[WorkerSnapshot]) -> str | None:
    """How the KV of prefill workers differs from that of decode workers, by the first that do."""
    told = [(worker.weights, worker.layout) for worker in workers if worker.layout is not None]
    ours = dict.fromkeys(layout for weights, layout in told if weights.prefill)
    theirs = dict.fromkeys(layout for weights, layout in told if weights.decode)
    reasons = (difference(one, other) for one in ours for other in theirs)
    return next((reason for reason in reasons if reason is not None), None)
