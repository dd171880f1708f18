"""Legs that are computed over HTTP: each a task of its own, which ends when nobody listens any more."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from atomesh.errors import AtomeshError, EngineError
from atomesh.mesh.backends.request_stream import RequestStream

_log = logging.getLogger(__name__)

Work = Callable[[RequestStream], Awaitable[None]]


class LegTasks:
    """Of one back end."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: dict[asyncio.Task[None], RequestStream] = {}

    def __len__(self) -> int:
        return len(self._open)

    def start(self, choices: int, work: Work, *, is_first_token_all: bool = False) -> RequestStream:
        """`work` pushes into the stream; to leave the stream before its end cancels `work`."""
        task: asyncio.Task[None] | None = None

        def leave(_shall_abort: bool) -> None:
            if task is not None and not stream.is_over:
                task.cancel()

        stream = RequestStream(choices, leave, is_first_token_all=is_first_token_all)
        task = asyncio.get_running_loop().create_task(self._run(stream, work))
        self._open[task] = stream
        task.add_done_callback(self._open.pop)
        return stream

    def fail_all(self, error: AtomeshError) -> None:
        for task, stream in tuple(self._open.items()):
            stream.fail(error)
            task.cancel()

    async def _run(self, stream: RequestStream, work: Work) -> None:
        try:
            await work(stream)
            if not stream.is_over:
                raise EngineError("the engine ended the answer before it was complete; try again")
        except AtomeshError as error:
            stream.fail(error)
        except Exception:  # noqa: BLE001  the task's root: whoever listens must hear of it
            _log.exception("what the engine at %s said was not understood", self._address)
            stream.fail(EngineError("what the engine said was not understood; try again"))
