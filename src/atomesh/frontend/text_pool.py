"""Rendering and tokenising away from the event loop, so that no stream stalls behind a long prompt."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from atomesh.errors import ServiceUnavailableError

T = TypeVar("T")


class TextPool:
    """Short texts are done at once, long ones by `threads` threads with at most `max_waiting` in line."""

    def __init__(self, threads: int, max_waiting: int, inline_chars: int) -> None:
        self._inline_chars = inline_chars
        self._places = threading.Semaphore(threads + max_waiting)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="atomesh-text")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """`work` on a text of `size` characters. Raises ServiceUnavailableError when the line is full."""
        if size <= self._inline_chars:
            return work()
        if not self._places.acquire(blocking=False):
            raise ServiceUnavailableError(
                "too many long prompts are waiting to be tokenised; try again later"
            )
        future = self._executor.submit(work)
        future.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
