import asyncio

import pytest

from atomesh.bench.load import Load, LoadResult
from atomesh.bench.prompts import Segment
from atomesh.bench.record import Failure, RequestRecord
from atomesh.bench.workload import PlannedRequest
from atomesh.clock import MonotonicClock
from atomesh.testing.manual_clock import ManualClock


def planned(*times: float) -> list[PlannedRequest]:
    return [PlannedRequest(at, (Segment(0, index, index + 1),), 1) for index, at in enumerate(times)]


def record(request: PlannedRequest, due: float) -> RequestRecord:
    return RequestRecord(due, due, due, request.input_tokens, failure=Failure("none", ""))


async def answer_at_once(request: PlannedRequest, due: float) -> RequestRecord:
    return record(request, due)


def run(load: Load, requests: list[PlannedRequest]) -> LoadResult:
    return asyncio.run(load.run(requests, lambda _: None, asyncio.Event()))


class Crowd:
    """A send that holds every request until `size` of them, or all that are left, are in flight together."""

    def __init__(self, size: int, total: int) -> None:
        self.size = size
        self.left = total
        self.in_flight = self.peak = 0
        self.gathered = asyncio.Event()

    async def send(self, request: PlannedRequest, due: float) -> RequestRecord:
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        if self.in_flight >= min(self.size, self.left):
            self.gathered.set()
        await self.gathered.wait()
        await asyncio.sleep(0)
        self.in_flight -= 1
        self.left -= 1
        return record(request, due)


def test_a_closed_loop_keeps_its_number_in_flight_and_never_more() -> None:
    crowd = Crowd(size=3, total=10)

    result = run(Load(crowd.send, MonotonicClock(), concurrency=3), planned(*[0.0] * 10))

    assert crowd.peak == 3
    assert len(result.records) == 10


def test_an_open_loop_has_no_limit() -> None:
    crowd = Crowd(size=10, total=10)

    run(Load(crowd.send, MonotonicClock()), planned(*[0.0] * 10))

    assert crowd.peak == 10


def test_requests_are_sent_when_due() -> None:
    clock = MonotonicClock()
    sent: list[tuple[float, float]] = []

    async def send(request: PlannedRequest, due: float) -> RequestRecord:
        sent.append((clock.now(), due))
        return record(request, due)

    run(Load(send, clock), planned(0.0, 0.02, 0.05))

    assert [due - sent[0][1] for _, due in sent] == pytest.approx([0.0, 0.02, 0.05])
    assert all(now >= due - 1e-3 for now, due in sent)


def test_every_record_is_reported_as_it_comes() -> None:
    heard: list[int] = []

    async def main() -> LoadResult:
        load = Load(answer_at_once, ManualClock(3.0))
        requests = planned(0.0, 0.0)
        return await load.run(requests, lambda r: heard.append(r.planned_input_tokens), asyncio.Event())

    result = asyncio.run(main())

    assert heard == [1, 2]
    assert result == LoadResult(result.records, duration_s=0.0, unfinished=0)


def test_stop_keeps_what_is_done_and_counts_what_is_not() -> None:
    async def main() -> tuple[LoadResult, bool]:
        stop = asyncio.Event()
        cancelled = asyncio.Event()

        async def send(request: PlannedRequest, due: float) -> RequestRecord:
            if request.input_tokens == 1:
                return record(request, due)
            stop.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return record(request, due)

        load = Load(send, MonotonicClock(), concurrency=1)
        return await load.run(planned(0.0, 0.0, 0.0), lambda _: None, stop), cancelled.is_set()

    result, was_cancelled = asyncio.run(main())

    assert [r.planned_input_tokens for r in result.records] == [1]
    assert result.unfinished == 2
    assert was_cancelled


@pytest.mark.parametrize("concurrency", [None, 1])
def test_a_bug_in_send_is_not_swallowed(concurrency: int | None) -> None:
    async def send(request: PlannedRequest, due: float) -> RequestRecord:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        run(Load(send, MonotonicClock(), concurrency), planned(0.0))

    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


def test_no_requests_end_at_once() -> None:
    assert run(Load(answer_at_once, ManualClock()), []) == LoadResult((), 0.0, 0)
