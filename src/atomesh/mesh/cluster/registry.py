"""What the gateway knows of its workers. The registry owns it; everyone else gets frozen snapshots."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from atomesh.mesh.cluster.breaker import CLOSED, Breaker
from atomesh.mesh.cluster.snapshot import FRESH_S, ClusterSnapshot, WorkerSnapshot, WorkerState
from atomesh.protocol.worker import PRESETS, LoadReport, RoleWeights, WorkerDescription


@dataclass(slots=True)
class _Journal:
    """Whether the last snapshot of the cluster still says how things are."""

    is_current: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    """Whoever changes a field that a snapshot shows says so with `touch`."""

    journal: _Journal = field(default_factory=_Journal)
    shown: WorkerSnapshot | None = None
    is_known: bool = False
    is_connected: bool = False
    description: WorkerDescription | None = None
    chosen_weights: RoleWeights | None = None
    load: LoadReport = field(default_factory=LoadReport)
    heard_at: float = 0.0
    in_flight: int = 0
    dispatched: int = 0
    prefill_tokens: int = 0
    prefill_quadratic: int = 0
    unbegun_tokens: int = 0
    sequences: int = 0
    decoding: int = 0
    context_tokens: int = 0
    when_idle: Callable[[], None] | None = None
    prompts: "dict[Commitment, None]" = field(default_factory=dict)  # those to be computed, the oldest first
    computed_tokens: int | None = None  # by its last report; None before its first one
    breaker: Breaker = CLOSED
    legs: "dict[Commitment, None]" = field(default_factory=dict)  # sent, and not over

    def touch(self) -> None:
        self.shown, self.journal.is_current = None, False

    @property
    def state(self) -> WorkerState:
        if not self.is_connected:
            return "lost" if self.is_known else "connecting"
        return "ready" if self.when_idle is None and not self.load.draining else "draining"

    @property
    def weights(self) -> RoleWeights:
        if self.chosen_weights is not None:
            return self.chosen_weights
        return RoleWeights() if self.description is None else PRESETS[self.description.role]


@dataclass(frozen=True, slots=True)
class Work:
    """What a leg adds to its worker: WorkerSnapshot's fields of these names."""

    prefill_tokens: int
    sequences: int
    prefill_quadratic: int = 0
    decoding: int = 0
    context_tokens: int = 0


class Commitment:
    """One leg's share of a worker's work, from its dispatch until `end`.

    `is_suspect`: its worker was lost, for all that one can know because of this leg.
    """

    def __init__(self, worker: _Worker, work: Work) -> None:
        self.is_suspect = False
        self._has_answered = False
        self._worker = worker
        self._work = work
        self._tokens_left, self._quadratic_left = work.prefill_tokens, work.prefill_quadratic
        self._is_open = True
        self._is_probe = worker.breaker.retry_at is not None
        self._is_judged = False
        if self._is_probe:
            worker.breaker = replace(worker.breaker, probes=worker.breaker.probes + 1)
        if worker.prefill_tokens or worker.decoding:
            worker.unbegun_tokens += work.prefill_tokens
        worker.in_flight += 1
        worker.dispatched += 1
        worker.prefill_tokens += work.prefill_tokens
        worker.prefill_quadratic += work.prefill_quadratic
        if work.prefill_tokens:
            worker.prompts[self] = None
        worker.sequences += work.sequences
        worker.decoding += work.decoding
        worker.context_tokens += work.context_tokens
        worker.touch()

    def computed(self, num_tokens: int) -> int:
        """The worker has computed so many tokens, first of all of this prompt; how many are left for others.

        Of a prompt up to n, the last t tokens make n² − (n − t)² of Σ(n² − m²).
        """
        work, done = self._work, min(num_tokens, self._tokens_left)
        left = self._tokens_left - done
        twice_end = work.prefill_quadratic // work.prefill_tokens + work.prefill_tokens
        self._set_left(left, min(left * (twice_end - left), self._quadratic_left))
        return num_tokens - done

    def prefilled(self) -> None:
        """The leg's prompt has been answered; what is left of it is decode. Of a probe that is enough.

        To be told with every step: only the first changes anything.
        """
        if self._has_answered:
            return
        self._worker.prompts.pop(self, None)
        self._set_left(0, 0)
        self._has_answered = True
        if self._is_probe:
            self.succeeded()

    def sent(self) -> None:
        """The worker has the leg: it is no mere expectation."""
        self._worker.legs[self] = None

    @property
    def has_answered(self) -> bool:
        return self._has_answered

    def succeeded(self) -> None:
        """The worker has done what it was asked."""
        if self._may_judge():
            self._worker.breaker = self._worker.breaker.succeeded()
            self._worker.touch()

    def failed(self, now: float) -> None:
        """It ended in a fault of the worker's."""
        if self._may_judge():
            self._worker.breaker = self._worker.breaker.failed(now)
            self._worker.touch()

    def _may_judge(self) -> bool:
        """Once; and what began before the breaker opened says nothing about the worker as it is now."""
        was_judged, self._is_judged = self._is_judged, True
        return not was_judged and self._is_probe == (self._worker.breaker.retry_at is not None)

    def _set_left(self, tokens: int, quadratic: int) -> None:
        self._worker.prefill_tokens -= self._tokens_left - tokens
        self._worker.prefill_quadratic -= self._quadratic_left - quadratic
        self._tokens_left, self._quadratic_left = tokens, quadratic
        self._worker.touch()

    def end(self) -> None:
        """The worker has no more to do for the leg. A second call changes nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._worker.prompts.pop(self, None)
        self._worker.legs.pop(self, None)
        self._set_left(0, 0)
        worker, work = self._worker, self._work
        worker.sequences -= work.sequences
        worker.decoding -= work.decoding
        worker.context_tokens -= work.context_tokens
        if self._is_probe and worker.breaker.probes:
            worker.breaker = replace(worker.breaker, probes=worker.breaker.probes - 1)
        worker.in_flight -= 1
        worker.touch()
        if worker.in_flight == 0 and worker.when_idle is not None:
            worker.when_idle()


class WorkerRegistry:
    def __init__(self, on_hello: Callable[[WorkerDescription], None]) -> None:
        """`on_hello` hears each worker that connects, again after each reconnect."""
        self._workers: dict[str, _Worker] = {}
        self._journal = _Journal()
        self._cluster = ClusterSnapshot(())
        self._on_hello = on_hello
        self._listeners: dict[Callable[[], None], None] = {}  # in the order in which they came

    @contextmanager
    def heeding(self, on_change: Callable[[], None]) -> Iterator[None]:
        """While the block runs, `on_change` is called whenever others than before may take new work.

        That a worker falls silent is no such change: nobody can be told of what does not come.
        """
        self._listeners[on_change] = None
        try:
            yield
        finally:
            del self._listeners[on_change]

    @property
    def num_heeding(self) -> int:
        return len(self._listeners)

    def tell_change(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def expect(self, address: str) -> None:
        """A worker is to be reached at `address`."""
        self._workers[address] = _Worker(self._journal)
        self._journal.is_current = False

    def forget(self, address: str) -> None:
        """Nobody is expected there any more."""
        self._workers.pop(address, None)
        self._journal.is_current = False
        self.tell_change()

    def connected(self, address: str, description: WorkerDescription, now: float) -> None:
        worker = self._workers[address]
        worker.is_known = worker.is_connected = True
        worker.description, worker.heard_at = description, now
        worker.load, worker.computed_tokens, worker.unbegun_tokens = LoadReport(), None, 0
        worker.touch()
        self._on_hello(description)
        self.tell_change()

    def heard(self, address: str, load: LoadReport, now: float) -> None:
        if (worker := self._workers.get(address)) is not None:
            is_news = now - worker.heard_at > FRESH_S or load.draining != worker.load.draining
            if not load.steps or load.steps != worker.load.steps:  # it has taken up what was sent before
                worker.unbegun_tokens = 0
            worker.load, worker.heard_at = load, now
            worker.touch()
            _take_off_computed(worker)
            if is_news:
                self.tell_change()

    def heard_at(self, address: str) -> float:
        return self._workers[address].heard_at

    def description(self, address: str) -> WorkerDescription | None:
        """What the last hello from there said; None where there was none, or nobody is expected."""
        worker = self._workers.get(address)
        return None if worker is None else worker.description

    def incarnation(self, address: str) -> str | None:
        """Whose hello was the last from there; None where there was none, or nobody is expected."""
        worker = self._workers.get(address)
        return None if worker is None or worker.description is None else worker.description.incarnation

    def lost(self, address: str) -> None:
        if (worker := self._workers.get(address)) is not None and worker.is_connected:
            worker.is_connected, worker.load = False, LoadReport()
            _suspect(worker.legs)
            if worker.in_flight:  # one death is one fault, however many it takes along
                worker.breaker = worker.breaker.failed(worker.heard_at)
            worker.touch()
            self.tell_change()

    def set_weights(self, address: str, weights: RoleWeights) -> None:
        """From now on, whatever role the worker gives itself at its next hello."""
        worker = self._workers.get(address)
        if worker is None or worker.chosen_weights == weights:
            return
        worker.chosen_weights = weights
        worker.touch()
        self.tell_change()

    def chosen_weights(self, address: str) -> RoleWeights | None:
        return self._workers[address].chosen_weights

    def drain(self, address: str, when_idle: Callable[[], None]) -> None:
        """No new work for this worker; `when_idle` is called once it has none left, perhaps at once."""
        worker = self._workers[address]
        worker.when_idle = when_idle
        worker.touch()
        self.tell_change()
        if worker.in_flight == 0:
            when_idle()

    def commit(self, address: str, *, prefill_tokens: int, sequences: int) -> Commitment:
        """`commit_work` of a leg of which no more is known."""
        return self.commit_work(address, Work(prefill_tokens, sequences))

    def commit_work(self, address: str, work: Work) -> Commitment:
        """Count work for the worker from the moment it is sent, not from its next report."""
        worker = self._workers.get(address, _Worker())  # one that was just forgotten has no books to keep
        return Commitment(worker, work)

    def snapshot(self) -> ClusterSnapshot:
        """The same one until something changes, with the same records of workers that have not."""
        if not self._journal.is_current:
            self._cluster = ClusterSnapshot(
                tuple([worker.shown or _show(address, worker) for address, worker in self._workers.items()])
            )
            self._journal.is_current = True
        return self._cluster


def _suspect(legs: Iterable[Commitment]) -> None:
    """Of those that a lost worker had: the ones that it had not answered yet, where there are any."""
    for leg in [leg for leg in legs if not leg.has_answered] or list(legs):
        leg.is_suspect = True


def _take_off_computed(worker: _Worker) -> None:
    """What a worker has computed since its last report is taken for that of the prompts sent there first.

    Prompts of other gateways count along, which makes ours look further on than they are.
    """
    total, before = worker.load.prompt_tokens, worker.computed_tokens
    worker.computed_tokens = total
    num_tokens = 0 if before is None else total - before
    for commitment in worker.prompts if num_tokens > 0 else ():
        num_tokens = commitment.computed(num_tokens)
        if not num_tokens:
            return


def _show(address: str, worker: _Worker) -> WorkerSnapshot:
    worker.shown = WorkerSnapshot(
        address=address,
        state=worker.state,
        description=worker.description,
        load=worker.load,
        heard_at=worker.heard_at,
        in_flight=worker.in_flight,
        dispatched=worker.dispatched,
        weights=worker.weights,
        prefill_tokens=worker.prefill_tokens,
        prefill_quadratic=worker.prefill_quadratic,
        unbegun_tokens=min(worker.unbegun_tokens, worker.prefill_tokens),
        sequences=worker.sequences,
        decoding=worker.decoding,
        context_tokens=worker.context_tokens,
        breaker=worker.breaker,
    )
    return worker.shown
