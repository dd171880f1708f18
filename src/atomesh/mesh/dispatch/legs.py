"""The legs of one request that are under way: sent, listened to, and let go of without fail."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from atomesh.clock import Clock, MonotonicClock
from atomesh.errors import AtomeshError, EngineError
from atomesh.frontend.token_service import Carry
from atomesh.mesh.backends.request_stream import UnreadAnswerError
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.cluster.breaker import is_fault
from atomesh.mesh.cluster.registry import Commitment, Work, WorkerRegistry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.placement import Placement, Unified
from atomesh.mesh.request_flow.relayed_flow import OtherLegFailedError
from atomesh.mesh.request_flow.steps import Arrived, LegFailed, SendLeg
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, PrefillLeg, TokenDelta


class LegStream(Protocol):
    async def until_next(self) -> None:
        """Returns when `next` has something to say."""
        ...

    async def next(self, carry: Carry | None = None) -> list[TokenDelta] | None:
        """The next step's deltas; None at the end.

        `carry` as TokenService has it, while this waits.

        Raises AtomeshError when the leg has failed, WorkerLostError when its worker is gone.
        """
        ...

    async def until_lost(self) -> None:
        """Returns when the worker is gone, also after the end of the leg."""
        ...

    def release(self) -> None:
        """Nobody listens any more, and the worker has nothing left to do."""
        ...

    def abort(self) -> None:
        """Nobody listens any more, and the worker shall forget the leg. Harmless when it is over."""
        ...


class Backend(Protocol):
    def submit(self, request: GenerationRequest, leg: Leg | None) -> LegStream:
        """Send a leg to the worker; without a connection its stream fails with WorkerLostError."""
        ...

    def abort_attempt(self, request_id: str) -> None:
        """Let the worker forget what it holds for a leg that was never sent to it."""
        ...


_NOT_THE_WORKERS = (UnreadAnswerError, OtherLegFailedError)
GRACE_S = 0.5  # a decode worker mostly notices by itself that its KV will not come, and sooner than we do


class RemovedWorker:
    """The backend, and the stream, of a worker that left the mesh, or was restarted, between two legs."""

    def submit(self, _request: GenerationRequest, _leg: Leg | None) -> "RemovedWorker":
        return self

    def abort_attempt(self, _request_id: str) -> None:
        """There is nobody to tell."""

    async def until_next(self) -> None:
        """It has nothing to wait for."""

    async def next(self, _carry: Carry | None = None) -> list[TokenDelta] | None:
        raise WorkerLostError

    async def until_lost(self) -> None:
        """It is."""

    def release(self) -> None:
        """There is nobody to tell."""

    def abort(self) -> None:
        """There is nobody to tell."""


@dataclass(frozen=True, slots=True)
class _Expected:
    worker: WorkerSnapshot
    request_id: str
    commitment: Commitment


class Legs:
    """`close` aborts what is still open."""

    def __init__(
        self, registry: WorkerRegistry, backends: Mapping[str, Backend], clock: Clock | None = None
    ) -> None:
        """`clock` is the one of the registry's times."""
        self._registry = registry
        self._clock = clock or MonotonicClock()
        self._backends = backends
        self._open: dict[SendLeg, tuple[LegStream, Commitment]] = {}
        self._expected: _Expected | None = None
        self._num_tokens = 0
        self._cached: dict[str, int] = {}

    def placed(self, placement: Placement, num_tokens: int) -> None:
        """What the next legs are for: a prompt of `num_tokens`, some of which need not be computed."""
        worker = placement.worker if isinstance(placement, Unified) else placement.prefill
        self._num_tokens, self._cached = num_tokens, {worker.address: placement.cached_tokens}

    def expect(self, decode: WorkerSnapshot, request_id: str, choices: int) -> None:
        """A leg of this attempt will be sent to `decode` later: it counts as work from now on."""
        self.call_off()
        work = Work(0, choices, decoding=choices, context_tokens=choices * self._num_tokens)
        commitment = self._registry.commit_work(decode.address, work)
        self._expected = _Expected(decode, request_id, commitment)

    def call_off(self) -> None:
        """No leg will be sent to the expected worker; what prefill has brought it is not wanted."""
        expected = self._expected
        if expected is not None:
            self._backend_of(expected.worker).abort_attempt(expected.request_id)
        self._end_expectation()

    def send(self, leg: SendLeg) -> None:
        stream = self._backend_of(leg.worker).submit(leg.request, leg.leg)
        commitment = self._commit(leg)
        if not isinstance(stream, RemovedWorker):
            commitment.sent()
        self._open[leg] = (stream, commitment)

    async def next(
        self, leg: SendLeg, source: SendLeg | None, carry: Carry | None = None
    ) -> Arrived | LegFailed:
        """As `Wait` says."""
        stream, commitment = self._open[leg]
        if source is not None and not await _comes(stream, self._open[source][0]):
            return self._failed(source, WorkerLostError(), is_lost=True)
        try:
            deltas = await stream.next(carry)
        except WorkerLostError as error:
            return self._failed(leg, error, is_lost=True)
        except AtomeshError as error:
            return self._failed(leg, error, is_lost=False)
        if deltas is None:
            early = EngineError("the worker ended the answer before it was complete; try again")
            return self._failed(leg, early, is_lost=False)
        commitment.prefilled()
        return Arrived(deltas)

    def release(self, leg: SendLeg) -> None:
        """Of a leg that is not open any more nothing is left to let go; so with `abort`."""
        if leg in self._open:
            stream, commitment = self._open.pop(leg)
            stream.release()
            commitment.succeeded()
            commitment.end()
        if isinstance(leg.leg, PrefillLeg):
            self._end_expectation()

    def abort(self, leg: SendLeg) -> None:
        if leg in self._open:
            stream, commitment = self._open.pop(leg)
            stream.abort()
            commitment.end()
        if isinstance(leg.leg, PrefillLeg):
            self.call_off()

    def close(self) -> None:
        for leg in tuple(self._open):
            self.abort(leg)
        self.call_off()

    def _backend_of(self, worker: WorkerSnapshot) -> Backend:
        """Of this very life of the worker: what has restarted at its address knows nothing of its tickets."""
        if self._registry.incarnation(worker.address) != worker.incarnation:
            return RemovedWorker()
        return self._backends.get(worker.address, RemovedWorker())

    def _commit(self, leg: SendLeg) -> Commitment:
        """The leg that was expected is counted already."""
        expected = self._expected
        is_decode = isinstance(leg.leg, DecodeLeg)
        if is_decode and expected is not None and expected.worker.address == leg.worker.address:
            self._expected = None
            return expected.commitment
        return self._registry.commit_work(leg.worker.address, self._work_of(leg))

    def _work_of(self, leg: SendLeg) -> Work:
        length, choices = len(leg.request.prompt_token_ids), leg.request.n
        if isinstance(leg.leg, DecodeLeg):
            length += max(map(len, leg.leg.outputs.values()), default=0)
            choices = len(leg.leg.outputs)
            if leg.leg.ticket is not None:
                return Work(0, choices, decoding=choices, context_tokens=choices * length)
        decoding = 0 if isinstance(leg.leg, PrefillLeg) else choices
        cached = min(self._cached.get(leg.worker.address, 0), length)
        return Work(
            prefill_tokens=length - cached,
            prefill_quadratic=length * length - cached * cached,
            sequences=choices,
            decoding=decoding,
            context_tokens=decoding * length,
        )

    def _end_expectation(self) -> None:
        if self._expected is not None:
            self._expected.commitment.end()
            self._expected = None

    def _failed(self, leg: SendLeg, error: AtomeshError, *, is_lost: bool) -> LegFailed:
        if isinstance(leg.leg, PrefillLeg):
            self.call_off()
        stream, commitment = self._open.pop(leg)
        if not is_lost and is_fault(error) and not isinstance(error, _NOT_THE_WORKERS):
            commitment.failed(self._clock.now())
        stream.release()
        commitment.end()
        return LegFailed(leg, error, is_lost, is_suspect=commitment.is_suspect or not is_lost)


async def _comes(stream: LegStream, source: LegStream) -> bool:
    """Whether `stream` has something to say, before `source` is lost or GRACE_S after that."""
    arrival = asyncio.ensure_future(stream.until_next())
    loss = asyncio.ensure_future(source.until_lost())
    try:
        await asyncio.wait((arrival, loss), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((arrival,), timeout=GRACE_S)
        return arrival.done()
    finally:
        for waiting in (arrival, loss):
            waiting.cancel()
