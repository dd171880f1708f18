"""F8, decided: twenty times what the workers can do, in virtual time, through the production admission."""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count

from atomesh.errors import RateLimitError, ServiceUnavailableError
from atomesh.mesh.admission.admission import Admission, QueueRules
from atomesh.mesh.admission.fair_queue import Waiting
from atomesh.mesh.admission.tenant import Tenant

SLOTS, SERVICE_S, FIRST_TOKEN_S = 8, 0.4, 0.1
CAPACITY = SLOTS / SERVICE_S  # requests a second
RULES = QueueRules(max_requests=256, max_wait_s=2.0)
FLOOD, OTHER = Tenant("flood"), Tenant("other")


@dataclass
class Fleet:
    """`SLOTS` places at the workers, each taken for SERVICE_S; a tenant may take three quarters of them."""

    admission: Admission = field(default_factory=lambda: Admission(RULES))
    now: float = 0.0
    free: int = SLOTS
    longest_line: int = 0
    refused: int = 0
    retry_after: set[int] = field(default_factory=set)
    ttft: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _ends: list[tuple[float, int, Waiting]] = field(default_factory=list)
    _serial: "count[int]" = field(default_factory=count)

    def arrive(self, tenant: Tenant, at: float) -> None:
        self.run_until(at)
        try:
            dropped = self.admission.enqueue(Waiting(tenant, 100, 1, at), at)
            self.refused += len(dropped)
        except (ServiceUnavailableError, RateLimitError) as error:
            self.refused += 1
            self.retry_after.add(error.retry_after_s)
        self.longest_line = max(self.longest_line, self.admission.num_waiting)
        self._serve()

    def run_until(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            self.now, _, entry = heapq.heappop(self._ends)
            self.free += 1
            self.admission.finished(entry, 0.0, self.now)
            self._serve()
        self.now = now
        self.refused += len(self.admission.expire(now))

    def _serve(self) -> None:
        while entry := self.admission.next(lambda _: self.free > 0, SLOTS * 3 // 4, self.now):
            self.free -= 1
            self.admission.charge(entry, 100.0)
            self.ttft[entry.tenant.name].append(self.now - entry.arrived_at + FIRST_TOKEN_S)
            heapq.heappush(self._ends, (self.now + SERVICE_S, next(self._serial), entry))


def arrivals(flood_s: float, until_s: float) -> list[tuple[float, Tenant]]:
    """Twenty times the capacity for `flood_s`, and all the time one request a second of somebody else's."""
    step = 1.0 / (20.0 * CAPACITY)
    flood = [(5.0 + i * step, FLOOD) for i in range(int(flood_s / step))]
    return sorted(flood + [(float(second), OTHER) for second in range(int(until_s))], key=lambda one: one[0])


def test_twenty_times_overload() -> None:
    fleet = Fleet()
    for at, tenant in arrivals(20.0, 25.0):
        fleet.arrive(tenant, at)

    assert max(fleet.ttft["flood"]) <= RULES.max_wait_s + FIRST_TOKEN_S  # who is let in is served in time
    served = len(fleet.ttft["flood"])
    assert served >= 0.7 * CAPACITY * 20.0  # and the workers are kept busy
    assert fleet.refused + served + fleet.admission.num_waiting >= 20 * CAPACITY * 20 - 1
    assert fleet.longest_line <= RULES.max_requests
    assert fleet.retry_after <= set(range(1, 121))

    assert max(fleet.ttft["other"]) <= 2 * FIRST_TOKEN_S  # as if nobody else were there
    assert len(fleet.ttft["other"]) == 25

    fleet.run_until(30.0)  # five seconds after the flood
    assert fleet.admission.num_waiting == 0
    assert fleet.free == SLOTS
    fleet.arrive(FLOOD, 30.0)
    assert fleet.ttft["flood"][-1] == FIRST_TOKEN_S
