"""What the mesh learns of its workers' speed: from steps and transfers that they measured."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TypeVar

from atomesh.mesh.placement.costs import (
    CHUNK_TOKENS,
    LEAST_S,
    PRIOR_LINK,
    PRIOR_STEP,
    Costs,
    LinkCosts,
    StepCosts,
    roofline_step,
)
from atomesh.mesh.placement.linear_fit import LinearFit
from atomesh.protocol.roofline import Roofline
from atomesh.protocol.step_sample import StepSample

MAX_WORKERS = 4096
MAX_LINKS = 16_384
LEAST_SHARE = 0.01  # of a worker's own prior, for a fit to begin with
LONGEST_S = 3600.0  # of a step or a transfer
MOST_WORK = 1e18  # of anything in one of them: tokens, pairs of tokens, bytes
SETTLED_PREFILLS = 16  # steps with prompt tokens, of which one that hung does not decide alone
DOUBT = 4.0  # a worker may be so many times as fast as it says: what it measured at its start was disturbed
SOLVE_EVERY = 32  # samples, once there are so many; before that whenever their number has doubled
_DECODE_ONLY, _WITH_PREFILL = 0, 1
_SHOWN_BY = (_DECODE_ONLY, _WITH_PREFILL, _WITH_PREFILL, _DECODE_ONLY, _DECODE_ONLY)  # as StepCosts.row
K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Worker:
    model: str = ""
    prior: StepCosts | None = None  # by its own description
    fit: LinearFit | None = None
    costs: StepCosts | None = None
    chunk_tokens: int = 0
    num_prefills: int = 0
    kinds: set[int] = field(default_factory=set)  # of the steps it has made


@dataclass(slots=True)
class _Link:
    fit: LinearFit = field(default_factory=lambda: LinearFit(_link_row(PRIOR_LINK)))
    costs: LinkCosts = PRIOR_LINK


class CostModel:
    """Owned by a shell; decisions get the frozen `view()`. Samples that make no sense are ignored."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._links: dict[tuple[str, str], _Link] = {}
        self._view: Costs | None = None

    def introduce(
        self, incarnation: str, model: str, chunk_tokens: int = 0, bounds: Roofline | None = None
    ) -> None:
        """Until it is measured, a worker is expected to be as fast as its `bounds` say, by as much as those
        of others of its model were right; without any, as fast as these. One that expects too little of
        itself would never be tried: up to DOUBT, it is hoped to be as fast as the fastest of them.

        `chunk_tokens` is the most that a step computes of prompts, 0 where the worker does not say.
        """
        worker = self._worker(incarnation)
        worker.prior = None if bounds is None else roofline_step(bounds)
        worker.model, worker.chunk_tokens = model, max(worker.chunk_tokens, chunk_tokens)
        self._view = None

    def observe_step(self, incarnation: str, sample: StepSample) -> None:
        """One step of a worker."""
        features = (
            1.0,
            sample.prefill_tokens,
            sample.prefill_quadratic,
            sample.context_tokens,
            sample.batch,
        )
        if not _makes_sense(sample.seconds, features):
            return
        worker = self._worker(incarnation)
        if worker.fit is None:
            worker.fit = LinearFit(self._prior_row(worker), kinds=2)
        kind = _WITH_PREFILL if sample.prefill_tokens else _DECODE_ONLY
        worker.fit.add(features, sample.seconds, kind)
        worker.kinds.add(kind)
        worker.chunk_tokens = max(worker.chunk_tokens, sample.prefill_tokens)
        worker.num_prefills += bool(sample.prefill_tokens)
        if worker.num_prefills == SETTLED_PREFILLS:
            self._view = None
        if _is_due(worker.fit):
            self._learn(worker, worker.fit.solve())

    def observe_transfer(self, sender: str, receiver: str, num_bytes: int, seconds: float) -> None:
        """KV that went from one worker to another."""
        features = (1.0, float(num_bytes))
        if not _makes_sense(seconds, features):
            return
        link = self._links.setdefault((sender, receiver), _Link())
        _keep_youngest(self._links, MAX_LINKS)
        link.fit.add(features, seconds)
        if _is_due(link.fit):
            link.costs = LinkCosts(*link.fit.solve())
            self._view = None

    def forget(self, incarnation: str) -> None:
        """The worker is gone."""
        self._workers.pop(incarnation, None)
        for pair in [pair for pair in self._links if incarnation in pair]:
            del self._links[pair]
        self._view = None

    def view(self) -> Costs:
        if self._view is None:
            self._view = Costs(
                steps={name: one.costs or self._hoped(one) for name, one in self._workers.items()},
                links={pair: link.costs for pair, link in self._links.items()},
                settled=frozenset(
                    name for name, one in self._workers.items() if one.num_prefills >= SETTLED_PREFILLS
                ),
                default_link=_mean_link([link.costs for link in self._links.values()]),
            )
        return self._view

    def _learn(self, worker: _Worker, row: tuple[float, ...]) -> None:
        if all(map(isfinite, row)):
            worker.costs = StepCosts.from_row(row, worker.chunk_tokens or CHUNK_TOKENS)
            self._view = None

    def _worker(self, incarnation: str) -> _Worker:
        worker = self._workers.setdefault(incarnation, _Worker())
        _keep_youngest(self._workers, MAX_WORKERS)
        return worker

    def _expected(self, worker: _Worker) -> StepCosts:
        """By the worker's own word and the measured ones of its model; the prior where there is neither."""
        own = worker.prior or PRIOR_STEP
        peers = [(one.costs, one.prior) for one in self._workers.values() if one.model == worker.model]
        measured = [costs for costs, _ in peers if costs is not None]
        if not measured:
            return StepCosts.from_row(own.row, worker.chunk_tokens or own.chunk_tokens)
        chunk_tokens = worker.chunk_tokens or max(one.chunk_tokens for one in measured)
        ratios = [_ratios(costs, prior) for costs, prior in peers if costs and prior]
        if worker.prior is None or not ratios:
            return StepCosts.from_row(_means(one.row for one in measured), chunk_tokens)
        row = [value * ratio for value, ratio in zip(own.row, _means(ratios), strict=True)]
        return StepCosts.from_row(row, chunk_tokens)

    def _hoped(self, worker: _Worker) -> StepCosts:
        """As expected, but, as far as DOUBT allows, no slower than the fastest of its model.

        Of each coefficient that is the fastest of those whose steps show it; by their word, where none do.
        """
        expected, own = self._expected(worker), worker.prior
        if own is None:
            return expected
        peers = [one for one in self._workers.values() if one.model == worker.model]
        columns = enumerate(zip(expected.row, own.row, strict=True))
        row = [_hope(place, value, word, peers) for place, (value, word) in columns]
        return StepCosts.from_row(row, expected.chunk_tokens)

    def _prior_row(self, worker: _Worker) -> tuple[float, ...]:
        """As expected, but nothing is free: what others' steps did not show, this one's may."""
        own = worker.prior or PRIOR_STEP
        pairs = zip(self._expected(worker).row, own.row, strict=True)
        return tuple(max(expected, LEAST_SHARE * value) for expected, value in pairs)


def _ratios(costs: StepCosts, prior: StepCosts) -> tuple[float, ...]:
    return tuple(measured / value for measured, value in zip(costs.row, prior.row, strict=True))


def _hope(place: int, expected: float, word: float, peers: Iterable[_Worker]) -> float:
    """Of the coefficient at that place, of a worker that has a `word` of its own."""
    best = ratio = inf
    least_word = word
    for one in peers:
        if one.prior is not None:
            least_word = min(least_word, one.prior.row[place])
        if one.costs is None or _SHOWN_BY[place] not in one.kinds:
            continue
        best = min(best, one.costs.row[place])
        if one.prior is not None:
            ratio = min(ratio, one.costs.row[place] / one.prior.row[place])
    if best == inf:
        best = expected * least_word / word
    surest = (expected if ratio == inf else word * ratio) / DOUBT
    return min(expected, max(best, surest))


def _makes_sense(seconds: float, features: Iterable[float]) -> bool:
    return LEAST_S <= seconds <= LONGEST_S and all(0 <= feature <= MOST_WORK for feature in features)


def _is_due(fit: LinearFit) -> bool:
    count = fit.num_samples
    return count % SOLVE_EVERY == 0 if count >= SOLVE_EVERY else count & (count - 1) == 0


def _keep_youngest(entries: dict[K, V], limit: int) -> None:
    while len(entries) > limit:
        del entries[next(iter(entries))]


def _link_row(costs: LinkCosts) -> tuple[float, ...]:
    return costs.latency_s, costs.byte_s


def _mean_link(measured: list[LinkCosts]) -> LinkCosts:
    return LinkCosts(*_means(map(_link_row, measured))) if measured else PRIOR_LINK


def _means(rows: Iterable[tuple[float, ...]]) -> list[float]:
    columns = list(zip(*rows, strict=True))
    return [sum(column) / len(column) for column in columns]
