"""Requests whose grammars are being compiled, away from the engine's thread and from the event loop."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Timer

from atomesh.engine.structured_output.grammars import Grammars
from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.protocol.generation import GenerationRequest

Prepared = GenerationRequest | Exception
THREADS = 2
MOST_WAITING = 256
PATIENCE_S = 10.0  # what frontends let through takes a second at most


@dataclass(slots=True, eq=False)
class _Waiting:
    then: Callable[[Prepared], None]
    timer: Timer


class WaitingRoom:
    """Belongs to the engine's thread, like all that `post` runs there."""

    def __init__(self, grammars: Grammars, post: Callable[[Callable[[], None]], None]) -> None:
        """`post` has something done in the engine's thread, and may be called from any."""
        self._grammars = grammars
        self._post = post
        self._waiting: dict[tuple[object, str], _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, owner: object, request: GenerationRequest, then: Callable[[Prepared], None]) -> None:
        """`then` is called with the request prepared, or with why it cannot be; never if it leaves before.

        Raises AtomeshError when it cannot wait here.
        """
        key = (owner, request.request_id)
        if key in self._waiting:
            raise AtomeshError("the request id is already in use on this connection")
        if len(self._waiting) >= MOST_WAITING:
            raise ServiceUnavailableError("too many grammars are waiting to be compiled; try again later")
        late = ServiceUnavailableError(f"the grammar was not compiled within {PATIENCE_S:g} s; simplify it")
        timer = Timer(PATIENCE_S, lambda: self._post(partial(self._arrive, key, waiting, late)))
        waiting = _Waiting(then, timer)
        timer.daemon = True
        timer.start()
        self._waiting[key] = waiting
        future = self._threads.submit(self._grammars.prepare, request)
        future.add_done_callback(lambda done: self._post(partial(self._arrive, key, waiting, _result(done))))

    def leave(self, owner: object, request_id: str) -> bool:
        """Whether it was here; it is forgotten."""
        waiting = self._waiting.pop((owner, request_id), None)
        if waiting is not None:
            waiting.timer.cancel()
        return waiting is not None

    def empty(self, owner: object) -> None:
        """Forget all that are `owner`'s."""
        for key in [key for key in self._waiting if key[0] is owner]:
            self.leave(*key)

    def close(self) -> None:
        for key in list(self._waiting):
            self.leave(*key)
        if "_threads" in vars(self):
            self._threads.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="atomesh-grammars")

    def _arrive(self, key: tuple[object, str], waiting: _Waiting, result: Prepared) -> None:
        if self._waiting.get(key) is waiting:
            waiting.then(result)
            self.leave(*key)  # only now: whoever counts requests finds it here or there


def _result(done: "Future[GenerationRequest]") -> Prepared:
    if done.cancelled():
        return ServiceUnavailableError("the worker is shutting down; try again in a moment")
    error = done.exception()
    if error is None:
        return done.result()
    return error if isinstance(error, Exception) else RuntimeError(str(error))
