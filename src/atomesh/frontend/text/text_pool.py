"""Rendering and tokenising away from the event loop, so that no stream stalls behind a long prompt."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from atomesh.errors import ServiceUnavailableError

T = TypeVar("T")

_LEAST_SIZE = 1024  # what even an empty text weighs in the line, so that their number is bounded too
_LEAST_WORK = 64  # what even an empty text takes to tokenise, in characters


def sum_sizes(texts: Iterable[Sized]) -> int:
    """What they come to for TextPool.run; many short ones are as much work as one that is long."""
    return sum(max(len(text), _LEAST_WORK) for text in texts)


def work_of(parts: object) -> int:
    """What so many parts of a conversation come to for TextPool.run; a text alone is one part."""
    return len(parts) * _LEAST_WORK if isinstance(parts, list | tuple) else _LEAST_WORK


class TextPool:
    """Works on `threads` texts at once; those that wait or are worked on have at most `max_characters`."""

    def __init__(self, threads: int, max_characters: int, inline_characters: int) -> None:
        self._inline_characters = inline_characters
        self._room = max_characters
        self._room_lock = threading.Lock()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="atomesh-text")

    async def run(self, size: int, work: Callable[[], T], *, together: int = 0) -> T:
        """`work` on a text of `size` characters, at once if it is short. Raises as `run_in_thread`.

        `together` is the size of all texts of the same request, if this is one of several.
        """
        if max(size, together) <= self._inline_characters:
            return work()
        return await self.run_in_thread(size, work)

    async def run_in_thread(self, size: int, work: Callable[[], T]) -> T:
        """Never at once: for work that waits. Raises ServiceUnavailableError when the line is full."""
        weight = max(size, _LEAST_SIZE)
        if not self._take(weight):
            raise ServiceUnavailableError(
                "too many long prompts are waiting to be tokenised; try again later"
            )
        future = self._executor.submit(work)

        def give_back(_: Future[T]) -> None:
            self._take(-weight)

        future.add_done_callback(give_back)
        return await asyncio.wrap_future(future)

    def _take(self, weight: int) -> bool:
        with self._room_lock:
            if weight > self._room:
                return False
            self._room -= weight
            return True

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
