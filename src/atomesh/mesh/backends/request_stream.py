"""One leg's deltas on their way from a worker's connection to whoever asked for them."""

import asyncio
from collections import deque
from collections.abc import Callable

from atomesh.errors import AtomeshError, EngineError
from atomesh.frontend.token_service import Carried, Carry
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.protocol.bounds import MAX_TOKENS
from atomesh.protocol.generation import TokenDelta, TokenLogprobs
from atomesh.protocol.wire_errors import to_exception

MAX_UNREAD_STEPS = 4096
MAX_UNREAD_BYTES = 16 * 2**20
CARRIED_STEPS = 16  # that the reader has not heard of: so far behind are charges and a death's tokens
MAX_CARRIED_BYTES = MAX_UNREAD_BYTES // CARRIED_STEPS  # a step
_TOKEN_BYTES = 112  # what a token, and each of its logprobs, roughly takes in memory


class UnreadAnswerError(EngineError):
    """Its reader was too slow."""


class RequestStream:
    """Holds what its reader has not yet taken, up to MAX_UNREAD_STEPS or about MAX_UNREAD_BYTES of tokens."""

    def __init__(
        self, choices: int, leave: Callable[[bool], None], *, is_first_token_all: bool = False
    ) -> None:
        """`choices` are still open; with `is_first_token_all` a choice is over with its first token.

        `leave` is called once, when nobody listens any more, with whether the worker shall forget the leg.
        """
        self._open_choices = choices
        self._is_first_token_all = is_first_token_all
        self._leave = leave
        self._carried: list[list[TokenDelta]] = []  # before all other steps
        self._steps: deque[tuple[list[TokenDelta], int]] = deque()  # each with about how many bytes it takes
        self._unread_bytes = 0
        self._error: AtomeshError | None = None
        self._arrival: asyncio.Future[None] | None = None  # what the reader waits for
        self._carry: Carry | None = None  # while it waits
        self._lost = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """The worker will send no more for this leg."""
        return self._open_choices <= 0 or self._error is not None

    def push(self, deltas: list[TokenDelta]) -> bool:
        """False when the leg has failed, and the worker shall abort it: its reader is too far behind, or it
        says what cannot be."""
        if self._error is not None or not deltas:
            return True
        if not _have_possible_tokens(deltas):
            self.fail(EngineError("the engine named a token that no model has; try again"))
            return False
        if self._carry is not None and _are_mere_tokens(deltas) and self._goes_ahead(deltas):
            return True
        good = [delta for delta in deltas if delta.error is None]
        self._open_choices -= sum(map(self._ends_choice, good))
        if good:
            size = _estimate_bytes(good)
            self._steps.append((good, size))
            self._unread_bytes += size
        for delta in deltas:
            if delta.error is not None:
                self.fail(to_exception(delta.error))
        self._wake()
        if not self._is_too_full() or self.is_over:
            return True
        self.fail(
            UnreadAnswerError(
                f"the answer was given up: {len(self._steps)} steps of it lie unread, about "
                f"{self._unread_bytes >> 20} MiB; the limits are {MAX_UNREAD_STEPS} steps and "
                f"{MAX_UNREAD_BYTES >> 20} MiB: read faster, or ask for fewer choices or logprobs"
            )
        )
        return False

    def fail(self, error: AtomeshError) -> None:
        """What has arrived is still delivered, then `error` is raised."""
        if not self.is_over:
            self._error = error
        if isinstance(error, WorkerLostError):
            self._lost.set()
        self._wake()

    async def until_lost(self) -> None:
        """Returns when the worker is gone, also after the end of the leg."""
        await self._lost.wait()

    async def until_next(self) -> None:
        """Returns when `next` has something to say."""
        while not self._steps and not self.is_over:
            await self._wait()

    async def next(self, carry: Carry | None = None) -> list[TokenDelta] | None:
        """The next step's deltas; None at the end. Raises AtomeshError when the leg has failed.

        `carry` as TokenService has it: what it took is told together with what comes next.
        """
        while not self._steps and not self._carried and not self.is_over:
            await self._wait_carrying(carry)
        told = self._take_carried()
        if self._steps:
            step, size = self._steps.popleft()
            self._unread_bytes -= size
            return told + step if told else step
        if told:
            return told
        if self._error is not None:
            raise self._error
        return None

    def release(self) -> None:
        """Nobody listens any more, and the worker has nothing left to do."""
        self._leave(False)

    def abort(self) -> None:
        """Nobody listens any more, and the worker shall forget the leg."""
        self._leave(self._error is None and (not self.is_over or self._is_first_token_all))

    def _goes_ahead(self, deltas: list[TokenDelta]) -> bool:
        """Whether they have gone before their reader, who is only woken when enough have."""
        if self._carry is None or self._arrival is None or self._arrival.done():  # done: the reader has left
            return False
        carried = self._carry.take(deltas)
        if carried is Carried.NO:
            return False
        self._carried.append(deltas)
        if carried is Carried.LAST or len(self._carried) >= CARRIED_STEPS:
            self._wake()
        return True

    def _take_carried(self) -> list[TokenDelta]:
        told = [delta for step in self._carried for delta in step]
        self._carried.clear()
        return told

    async def _wait_carrying(self, carry: Carry | None) -> None:
        self._carry = carry
        try:
            await self._wait()
        except asyncio.CancelledError:
            if carry is not None and self._carried:
                carry.untold(self._take_carried())
            raise

    async def _wait(self) -> None:
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._carry = None

    def _wake(self) -> None:
        self._carry = None  # what comes from now on must not overtake what the reader is about to take
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _ends_choice(self, delta: TokenDelta) -> bool:
        return delta.finish_reason is not None or self._is_first_token_all

    def _is_too_full(self) -> bool:
        return len(self._steps) > MAX_UNREAD_STEPS or self._unread_bytes > MAX_UNREAD_BYTES


def _have_possible_tokens(deltas: list[TokenDelta]) -> bool:
    for delta in deltas:
        for token_id in delta.token_ids:
            if not 0 <= token_id < MAX_TOKENS:
                return False
        if delta.logprobs is not None or delta.prompt_logprobs is not None:
            told = (*(delta.logprobs or ()), *(delta.prompt_logprobs or ()))
            if not all(_is_possible(entry) for entry in told if entry is not None):
                return False
    return True


def _is_possible(told: TokenLogprobs) -> bool:
    return all(0 <= token_id < MAX_TOKENS for token_id in (told.token_id, *(pair[0] for pair in told.top)))


def _are_mere_tokens(deltas: list[TokenDelta]) -> bool:
    """Nothing else is said with them, nothing ends, and they are not too many to be held."""
    for delta in deltas:
        if (
            not delta.token_ids
            or delta.finish_reason is not None
            or delta.error is not None
            or delta.cached_tokens is not None
            or delta.timings is not None
            or delta.kv_source is not None
            or delta.prompt_logprobs is not None
            or delta.serving_path is not None
        ):
            return False
    return _estimate_bytes(deltas) <= MAX_CARRIED_BYTES


def _estimate_bytes(deltas: list[TokenDelta]) -> int:
    """Prompt logprobs are left out: they come once, and however fast one reads."""
    entries = 0
    for delta in deltas:
        entries += len(delta.token_ids)
        if delta.logprobs:
            entries += sum(1 + len(entry.top) for entry in delta.logprobs)
    return _TOKEN_BYTES * entries
