"""A client that leaves ends its request, whatever that was waiting for."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


class ClientDisconnectedError(Exception):
    """Nobody is left to answer."""


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, once the body has been read; cancel it and wait for its end when the client leaves.

    Raises what `work` raises, or ClientDisconnectedError.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        has_left = task.cancel()
        await asyncio.wait({task})
    if has_left:
        raise ClientDisconnectedError
    task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
