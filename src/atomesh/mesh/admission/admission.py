"""Who may come in, who waits, who is told to come back: decided from data and `now`, without a clock.

    enqueue ─▶ in line ─▶ next: its turn, and some worker has room ─▶ running ─▶ finished
       │         ├─▶ expire: its deadline, or the longest wait, has passed
       │         ╰─▶ pushed out by a tenant that holds less of a full line
       ╰─▶ refused at once: the line is full, or the wait would be too long

A request is bound to a worker only when its turn has come, so that whatever becomes of the workers meanwhile
is known then. Costs are charged as they are measured (cost.py).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Literal

from atomesh.errors import AtomeshError, DeadlineExceededError, RateLimitError, ServiceUnavailableError
from atomesh.mesh.admission.departures import Departures
from atomesh.mesh.admission.fair_queue import FairQueue, Waiting
from atomesh.mesh.admission.tenant import Tenant

PROMISE = 0.75  # of the longest wait, which nobody is let in for who may have to be sent away after it
Refusal = Literal["tenant_queue_full", "queue_full", "wait_too_long", "deadline", "pushed_out", "expired"]


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Bounds of one model's line: in requests, in their prompt tokens (where more than one waits), and in
    seconds from an arrival to its turn."""

    max_requests: int = 2048
    max_tokens: int = 2 * 2**20
    max_wait_s: float = 600.0


DEFAULT_RULES = QueueRules()


@dataclass(frozen=True, slots=True)
class Dropped:
    """A request that waited in vain, and what its client shall hear."""

    entry: Waiting
    error: AtomeshError


class Admission:
    """For one model. `refusals` counts by reason."""

    def __init__(self, rules: QueueRules = DEFAULT_RULES) -> None:
        self.refusals: Counter[Refusal] = Counter()
        self._rules = rules
        self._queue = FairQueue()
        self._running: Counter[str] = Counter()
        self._costs: dict[str, float] = {}
        self._departures = Departures()

    @property
    def num_waiting(self) -> int:
        return self._queue.num_requests

    def waiting_of(self, tenant: str) -> int:
        return self._queue.count(tenant)

    def running_of(self, tenant: str) -> int:
        """Choices of its requests that have had their turn and are not over."""
        return self._running[tenant]

    def cost_of(self, tenant: str) -> float:
        """All that it has been charged, in the units of cost.py."""
        return self._costs.get(tenant, 0.0)

    def enqueue(self, entry: Waiting, now: float, service_s: float | None = None) -> list[Dropped]:
        """Get in line; those who had to give up their place for it.

        `service_s` is how long it is expected to take from its turn to its first token. Raises
        ServiceUnavailableError or RateLimitError, and changes nothing, when there is no place, when the wait
        would be longer than allowed, or when the deadline could not be met.
        """
        self._refuse_late(entry, now, service_s)
        dropped = self._make_room(entry, now)
        self._queue.push(entry)
        return dropped

    def next(
        self, has_room: Callable[[Waiting], bool], most_per_tenant: int | None, now: float
    ) -> Waiting | None:
        """Whose turn it is, taken out of the line; None when nobody waits, or when it is somebody's turn but
        no worker `has_room` for it: nobody overtakes the one who is next.

        No tenant but one with nothing else runs more than `most_per_tenant` choices at once.
        """

        def may_run(entry: Waiting) -> bool:
            running = self._running[entry.tenant.name]
            return most_per_tenant is None or not running or running + entry.choices <= most_per_tenant

        entry = self._queue.first(may_run)
        if entry is None or not has_room(entry):
            return None
        self._queue.serve(entry)
        self._running[entry.tenant.name] += entry.choices
        self._departures.started(now)
        return entry

    def charge(self, entry: Waiting, cost: float) -> None:
        """What a request has cost so far, in addition to what was charged for it before. What is no amount
        is not charged."""
        if not isfinite(cost):
            return
        self._queue.charge(entry.tenant, cost)
        name = entry.tenant.name
        self._costs[name] = self._costs.get(name, 0.0) + cost

    def finished(self, entry: Waiting, cost: float, now: float) -> None:
        """A request that has had its turn is over, however it ended; `cost` is the last of it."""
        self.charge(entry, cost)
        name = entry.tenant.name
        self._running[name] -= entry.choices
        if not self._running[name]:
            del self._running[name]
            self._queue.forget(entry.tenant)
        self._departures.finished(now)

    def withdraw(self, entry: Waiting) -> bool:
        """Its client has left; False when it is not in line."""
        return self._queue.remove(entry)

    def expire(self, now: float) -> list[Dropped]:
        """Those who have waited for too long, taken out of the line."""
        overdue = [drop for entry in self._queue if (drop := self._overdue(entry, now)) is not None]
        for drop in overdue:
            self._queue.remove(drop.entry)
        self.refusals["expired"] += len(overdue)
        return overdue

    def expected_wait_s(self, tenant: Tenant, now: float) -> float:
        """How long the tenant's next request would be in line; 0 when nothing is known of it."""
        per_second = self._departures.per_second(now)
        if per_second is None or not self.num_waiting:
            return 0.0
        own = (self._queue.count(tenant.name) + 1) / self._queue.share(tenant)
        return min(own, self.num_waiting + 1) / per_second

    def _refuse_late(self, entry: Waiting, now: float, service_s: float | None) -> None:
        wait_s = self.expected_wait_s(entry.tenant, now)
        first_token_at = now + wait_s + (service_s or 0.0)
        if entry.deadline_at is not None and first_token_at > entry.deadline_at:
            self.refusals["deadline"] += 1
            raise ServiceUnavailableError(
                f"the first token is expected in {first_token_at - now:.1f} s, later than the request's "
                f"deadline in {max(0.0, entry.deadline_at - now):.1f} s; allow more time, or try again later",
                retry_after_s=ceil(wait_s),
            )
        if wait_s > PROMISE * self._rules.max_wait_s:
            self.refusals["wait_too_long"] += 1
            raise ServiceUnavailableError(
                f"the server is overloaded: a new request would wait for about {wait_s:.0f} s, and the limit "
                f"is {self._rules.max_wait_s:g} s; try again later",
                retry_after_s=ceil(wait_s - PROMISE * self._rules.max_wait_s),
            )

    def _make_room(self, entry: Waiting, now: float) -> list[Dropped]:
        """Where the line is full, the last of whoever holds the most go; nobody, unless that is enough."""
        queue, leaving = self._queue, list[Waiting]()
        if not self._is_full(entry, leaving):
            return []
        for last in queue.last_of_longest():
            if queue.crowding(last.tenant, -len(leaving)) <= queue.crowding(entry.tenant, 1):
                break
            leaving.append(last)
            if not self._is_full(entry, leaving):
                return self._push_out(leaving, now)
        raise self._refusal(entry, now)

    def _push_out(self, leaving: list[Waiting], now: float) -> list[Dropped]:
        self.refusals["pushed_out"] += len(leaving)
        dropped = [Dropped(entry, self._overload(now)) for entry in leaving]
        for entry in leaving:
            self._queue.remove(entry)
        return dropped

    def _is_full(self, entry: Waiting, leaving: Sequence[Waiting]) -> bool:
        requests = self._queue.num_requests - len(leaving)
        tokens = self._queue.num_tokens - sum(one.prompt_tokens for one in leaving)
        rules = self._rules
        return requests > 0 and (
            requests >= rules.max_requests or tokens + entry.prompt_tokens > rules.max_tokens
        )

    def _refusal(self, entry: Waiting, now: float) -> AtomeshError:
        own = self._queue.count(entry.tenant.name)
        if own == self._queue.num_requests or not own:
            self.refusals["queue_full"] += 1
            return self._overload(now)
        self.refusals["tenant_queue_full"] += 1
        return RateLimitError(
            f"the line is full, and this key has {own} requests in it, more than its share; wait for some",
            retry_after_s=self._retry_after_s(now),
        )

    def _overload(self, now: float) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"the server is overloaded: {self._queue.num_requests} requests with {self._queue.num_tokens} "
            f"prompt tokens are in line, and the limits are {self._rules.max_requests} and "
            f"{self._rules.max_tokens}; try again later",
            retry_after_s=self._retry_after_s(now),
        )

    def _retry_after_s(self, now: float) -> int:
        """Until a good part of the line is gone."""
        per_second = self._departures.per_second(now)
        return 1 if per_second is None else ceil(self._queue.num_requests / per_second / 4)

    def _overdue(self, entry: Waiting, now: float) -> Dropped | None:
        waited = now - entry.arrived_at
        if entry.deadline_at is not None and now >= entry.deadline_at:
            late = DeadlineExceededError(
                f"the deadline passed after {waited:.1f} s in line, before a worker had room; allow more time"
            )
            return Dropped(entry, late)
        if waited >= self._rules.max_wait_s:
            error = ServiceUnavailableError(
                f"no worker had room within {self._rules.max_wait_s:g} s; try again later",
                retry_after_s=self._retry_after_s(now),
            )
            return Dropped(entry, error)
        return None
