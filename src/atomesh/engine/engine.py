"""ATOM's engine: add requests, step, take what came of it. Synchronous; owned by one thread."""

import logging

from atomesh.clock import Clock
from atomesh.engine.core.batch import ScheduledBatch, SequenceOutcome, StepResult
from atomesh.engine.core.scheduler import Scheduler
from atomesh.engine.executor import Executor
from atomesh.errors import InvalidRequestError
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription

log = logging.getLogger(__name__)

FAILURE = "the engine could not compute this request; it was removed, and the engine goes on"


class Engine:
    def __init__(
        self, scheduler: Scheduler, executor: Executor, clock: Clock, description: ModelDescription
    ) -> None:
        self.description = description
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock

    def add(self, request: GenerationRequest) -> None:
        """Queue a request; InvalidRequestError or ContextLengthError if it can never run to its end."""
        vocab_size = self.description.vocab_size
        for token_id in (min(request.prompt_token_ids, default=0), max(request.prompt_token_ids, default=0)):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"token id {token_id} is not in the vocabulary, which has {vocab_size} entries",
                    param="prompt",
                )
        self._scheduler.add(request, self._clock.now())

    def abort(self, request_id: str) -> None:
        """End a request and free its blocks at once, without a word. An unknown id is ignored."""
        self._scheduler.abort(request_id)

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def step(self) -> list[TokenDelta]:
        """Compute one batch; what it brought for each choice. A request's failure is a delta, not raised."""
        batch = self._scheduler.schedule(self._clock.now())
        if not batch.sequences:
            return []
        result = self._execute(batch)
        return self._scheduler.update(batch, result, self._clock.now())

    def load(self) -> LoadReport:
        return self._scheduler.load()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        self._scheduler.reset_prefix_cache()

    def close(self) -> None:
        self._executor.close()

    def check_invariants(self) -> None:
        """Raises AssertionError if the engine's books are wrong; for tests, and for when it is idle."""
        self._scheduler.check_invariants()

    def _execute(self, batch: ScheduledBatch) -> StepResult:
        try:
            return self._executor.execute(batch)
        except Exception:
            log.exception("a batch of %d sequences failed", len(batch.sequences))
        if len(batch.sequences) == 1:
            return StepResult({batch.sequences[0].sequence_id: SequenceOutcome(error=FAILURE)})
        return self._execute_one_by_one(batch)

    def _execute_one_by_one(self, batch: ScheduledBatch) -> StepResult:
        """Find out who spoils the batch. The block copies go along until an attempt with them has passed."""
        outcomes: dict[int, SequenceOutcome] = {}
        copies = batch.copies
        for sequence in batch.sequences:
            try:
                result = self._executor.execute(ScheduledBatch((sequence,), copies))
            except Exception:
                log.exception("sequence %d fails alone and is removed", sequence.sequence_id)
                outcomes[sequence.sequence_id] = SequenceOutcome(error=FAILURE)
            else:
                outcomes.update(result.outcomes)
                copies = ()
        return StepResult(outcomes)
