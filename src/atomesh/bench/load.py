"""Sends planned requests at their times, at most so many at once, and keeps what came of each."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from atomesh.bench.record import RequestRecord
from atomesh.bench.workload import PlannedRequest
from atomesh.clock import Clock

Send = Callable[[PlannedRequest, float], Awaitable[RequestRecord]]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """`unfinished` requests were never sent or were cut off by `stop`; they are in no record."""

    records: tuple[RequestRecord, ...]
    duration_s: float
    unfinished: int


@dataclass(frozen=True, slots=True)
class Load:
    """`concurrency` None: no limit, an open loop; with every `at_s` at 0 a limit makes a closed loop.

    `send` is handed a request and the moment it was due, and must not raise for a failure of the request.
    """

    send: Send
    clock: Clock
    concurrency: int | None = None

    async def run(
        self,
        requests: Sequence[PlannedRequest],
        on_record: Callable[[RequestRecord], None],
        stop: asyncio.Event,
    ) -> LoadResult:
        """Ends when all requests have, or soon after `stop` is set.

        `requests` are in order of their `at_s`.
        """
        records: list[RequestRecord] = []
        start = self.clock.now()

        def keep(record: RequestRecord) -> None:
            records.append(record)
            on_record(record)

        work = asyncio.create_task(self._send_all(requests, start, keep))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, stopped):
            task.cancel()
        outcomes = await asyncio.gather(work, stopped, return_exceptions=True)
        _raise_crash(outcomes[0])
        return LoadResult(tuple(records), self.clock.now() - start, len(requests) - len(records))

    async def _send_all(
        self, requests: Sequence[PlannedRequest], start: float, keep: Callable[[RequestRecord], None]
    ) -> None:
        slots = asyncio.Semaphore(self.concurrency or max(len(requests), 1))

        async def send_one(request: PlannedRequest, due: float) -> None:
            try:
                keep(await self.send(request, due))
            finally:
                slots.release()

        async with asyncio.TaskGroup() as group:
            for request in requests:
                due = start + request.at_s
                await asyncio.sleep(max(due - self.clock.now(), 0))
                await slots.acquire()
                group.create_task(send_one(request, due))


def _raise_crash(outcome: object) -> None:
    if isinstance(outcome, Exception):
        raise outcome
