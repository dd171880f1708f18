"""Responses that are answered without anybody waiting."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from starlette.types import Message

from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.frontend.openai.responses.event_log import EventLog, LoggedRenderer
from atomesh.frontend.openai.responses.planning import PlannedResponse
from atomesh.frontend.openai.responses.response_body import Body

_log = logging.getLogger(__name__)

SHUT_DOWN = "the server shut down before the answer was complete; ask again"
CANCELLED = "the response was cancelled"
_MAX_ENDED = 1024  # of which the events are still there to be read
_MAX_ENDED_BYTES = 32 * 2**20

Answer = Callable[[LoggedRenderer], Awaitable[None]]


@dataclass(slots=True, eq=False)
class BackgroundRun:
    """`answer` drives the generation through a renderer; `keep` stores what has come of it.

    All happens inside `counted`, for whose end a server waits before it goes.
    """

    planned: PlannedResponse
    answer: Answer
    keep: Callable[[], Awaitable[None]]
    counted: Callable[[], AbstractContextManager[None]]
    log: EventLog = field(default_factory=EventLog)
    task: "asyncio.Task[None] | None" = None
    is_server_ending: bool = False
    is_answering: bool = True

    @property
    def id(self) -> str:
        return self.planned.renderer.id

    @property
    def owner(self) -> str:
        return self.planned.owner

    def body(self) -> Body:
        return self.planned.renderer.body()

    async def run(self) -> None:
        with self.counted():
            await self._run()

    async def _run(self) -> None:
        renderer = self.planned.renderer
        try:
            await self.answer(LoggedRenderer(renderer, self.log))
        except asyncio.CancelledError:
            self._note_cancellation()
        except AtomeshError as error:
            _log.info("response %s has failed: %s", renderer.id, error.message)
        except Exception:  # noqa: BLE001  the task's root: nobody else would hear of it
            _log.exception("response %s has failed", renderer.id)
        self.is_answering = False
        await self.keep()
        self.log.close(is_whole=renderer.status in ("completed", "incomplete"))

    def _note_cancellation(self) -> None:
        renderer = self.planned.renderer
        if self.is_server_ending:
            self.log.append(renderer.failure(ServiceUnavailableError(SHUT_DOWN)))
        else:
            renderer.cancel()
            self.log.append(renderer.error_frame(AtomeshError(CANCELLED, code="cancelled")))

    async def end(self) -> None:
        """Now, unless it has ended by itself; returns when that is written down."""
        if self.task is not None:
            if self.is_answering:
                self.is_answering = False
                self.task.cancel()
            await asyncio.wait((self.task,))


@dataclass(frozen=True, slots=True)
class _EndedRun:
    owner: str
    log: EventLog


class BackgroundRuns:
    """At most `limit` at once; the events of those that have ended stay for a while."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[str, BackgroundRun] = {}
        self._ended: OrderedDict[str, _EndedRun] = OrderedDict()
        self._ended_bytes = 0

    def check_room(self) -> None:
        """Raises ServiceUnavailableError when as many run as may."""
        if len(self._running) >= self._limit:
            raise ServiceUnavailableError(
                f"{len(self._running)} background responses are being answered; the limit is {self._limit}: "
                "try again later, or without background",
                retry_after_s=5,
            )

    def start(self, run: BackgroundRun) -> None:
        self._running[run.id] = run
        run.log.append(run.planned.renderer.queued_frames())
        run.task = asyncio.create_task(run.run())
        run.task.add_done_callback(lambda _: self._has_ended(run))

    def running(self, owner: str, response_id: str) -> BackgroundRun | None:
        run = self._running.get(response_id)
        return run if run is not None and run.owner == owner else None

    def log(self, owner: str, response_id: str) -> EventLog | None:
        """Also of one that has ended lately."""
        run = self._running.get(response_id) or self._ended.get(response_id)
        return run.log if run is not None and run.owner == owner else None

    def forget(self, response_id: str) -> None:
        """The events of one that has ended."""
        if (run := self._ended.pop(response_id, None)) is not None:
            self._ended_bytes -= run.log.num_bytes

    async def close(self) -> None:
        """All end, as failed."""
        runs = list(self._running.values())
        for run in runs:
            run.is_server_ending = True
        await asyncio.gather(*(run.end() for run in runs))

    def _has_ended(self, run: BackgroundRun) -> None:
        del self._running[run.id]
        self._ended[run.id] = _EndedRun(run.owner, run.log)
        self._ended_bytes += run.log.num_bytes
        while len(self._ended) > _MAX_ENDED or self._ended_bytes > _MAX_ENDED_BYTES:
            self.forget(next(iter(self._ended)))


async def nowhere(_message: Message) -> None:
    """Where the answer goes that nobody waits for: who follows it reads its log."""
