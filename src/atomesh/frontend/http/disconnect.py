"""A client that leaves ends its request, whatever that was waiting for."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


class ClientDisconnectedError(Exception):
    """Nobody is left to answer."""


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, once the body has been read; cancel it when the client leaves, and wait for its end.

    Raises what `work` raises, or ClientDisconnectedError.
    """
    watch = _Watch(receive)
    watching = asyncio.ensure_future(watch.run())
    try:
        await work
    except asyncio.CancelledError:
        if watch.is_all_that_cancelled():
            raise ClientDisconnectedError from None
        raise
    finally:
        watching.cancel()
    if watch.is_all_that_cancelled():
        raise ClientDisconnectedError


class _Watch:
    """Cancels the task in which it was made, once, when the client leaves."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task = asyncio.current_task()
        self._has_left = False

    async def run(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        if self._task is not None:
            self._task.cancel()

    def is_all_that_cancelled(self) -> bool:
        """The client has left, and nobody else wants the task to end. To be asked once."""
        return self._has_left and self._task is not None and self._task.uncancel() == 0
