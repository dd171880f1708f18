"""Who is next, when all wait: the higher class first, and within a class each tenant by its weight.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over measured cost, as the virtual token counter of
Sheng et al. (OSDI 2024) has it. A tenant's tag is the cost it was charged over its weight; the least tag is
next. Who begins to wait is lifted to the tag that was served last: nobody saves up a claim by being idle.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite

from atomesh.mesh.admission.tenant import CLASSES, PriorityClass, Tenant


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """One request in line, by identity. Times are in seconds on the caller's clock.

    Among a tenant's own requests those of a lower `priority` number go first, then older ones.
    """

    tenant: Tenant
    prompt_tokens: int
    choices: int
    arrived_at: float
    priority: int = 0
    deadline_at: float | None = None


class FairQueue:
    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self._lines: dict[str, list[Waiting]] = {}
        self._tags: dict[str, float] = {}
        self._served: dict[PriorityClass, float] = dict.fromkeys(CLASSES, 0.0)

    def __iter__(self) -> Iterator[Waiting]:
        """In no particular order."""
        for line in self._lines.values():
            yield from line

    def count(self, tenant: str) -> int:
        return len(self._lines.get(tenant, ()))

    def push(self, entry: Waiting) -> None:
        name = entry.tenant.name
        line = self._lines.setdefault(name, [])
        if not line:
            served = self._served[entry.tenant.priority_class]
            self._tags[name] = max(self._tags.get(name, 0.0), served)
        insort(line, entry, key=_rank)
        self.num_requests += 1
        self.num_tokens += entry.prompt_tokens

    def first(self, may_run: Callable[[Waiting], bool]) -> Waiting | None:
        """Whose turn it is among the tenants whose first request may run."""
        heads = [line[0] for line in self._lines.values() if may_run(line[0])]
        return min(heads, key=self._turn, default=None)

    def serve(self, entry: Waiting) -> None:
        """Its turn has come: it leaves the line, and its tenant's tag is what later ones are lifted to."""
        priority_class = entry.tenant.priority_class
        tag = self._tags[entry.tenant.name]
        self._served[priority_class] = max(self._served[priority_class], tag)
        self.remove(entry)

    def remove(self, entry: Waiting) -> bool:
        """False when it is not in line."""
        line = self._lines.get(entry.tenant.name, [])
        if entry not in line:
            return False
        line.remove(entry)
        if not line:
            del self._lines[entry.tenant.name]
        self.num_requests -= 1
        self.num_tokens -= entry.prompt_tokens
        return True

    def charge(self, tenant: Tenant, cost: float) -> None:
        """Raises ValueError for what is not finite: no later charge could make up for it."""
        if not isfinite(cost):
            raise ValueError(f"the charge of tenant {tenant.name!r} is {cost}; it must be finite")
        self._tags[tenant.name] = self._tags.get(tenant.name, 0.0) + cost / tenant.weight

    def forget(self, tenant: Tenant) -> None:
        """The tenant is idle; its tag is kept only while it is behind with it."""
        name = tenant.name
        is_even = self._tags.get(name, 0.0) <= self._served[tenant.priority_class]
        if name not in self._lines and is_even:
            self._tags.pop(name, None)

    def last_of_longest(self) -> list[Waiting]:
        """The line that is longest for its tenant's weight, in the lowest class that waits, from its end."""
        lines = self._lines.values()
        return max(lines, key=lambda line: self.crowding(line[0].tenant), default=[])[::-1]

    def crowding(self, tenant: Tenant, more: int = 0) -> tuple[int, float]:
        """The order of who is the first to give up its place; `more` requests would join its line."""
        return CLASSES.index(tenant.priority_class), (self.count(tenant.name) + more) / tenant.weight

    def share(self, tenant: Tenant) -> float:
        """The part of the workers that is the tenant's, among those who wait, should it wait too."""
        weights = {line[0].tenant.name: line[0].tenant.weight for line in self._lines.values()}
        weights[tenant.name] = tenant.weight
        return tenant.weight / sum(weights.values())

    def _turn(self, entry: Waiting) -> tuple[int, float, float]:
        tenant = entry.tenant
        return CLASSES.index(tenant.priority_class), self._tags[tenant.name], entry.arrived_at


def _rank(entry: Waiting) -> int:
    return entry.priority
