"""ATOM's engine: add requests, step, take what came of it. Synchronous; owned by one thread."""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from atomesh.clock import Clock
from atomesh.engine.connector import Connector, NoConnector
from atomesh.engine.core.batch import ScheduledBatch, SequenceOutcome, StepResult
from atomesh.engine.core.kv_books import KVBooks
from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.engine.core.step_measure import measure
from atomesh.engine.event_sink import EventSink, NoSink
from atomesh.engine.executor import Executor
from atomesh.engine.news import EngineNews
from atomesh.engine.step_recorder import StepRecorder, StepTimes
from atomesh.engine.structured_output.grammars import Grammars, NoGrammars
from atomesh.errors import InvalidRequestError
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, TokenDelta
from atomesh.protocol.kv_events import KVSnapshot
from atomesh.protocol.worker import LoadReport, ModelDescription

if TYPE_CHECKING:
    from atomesh.protocol.step_sample import StepSample

log = logging.getLogger(__name__)

FAILURE = "the engine could not compute this request; it was removed, and the engine goes on"


class Engine:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        description: ModelDescription,
        connector: Connector | None = None,
        recorder: StepRecorder | None = None,
    ) -> None:
        self.description = description
        self.recorder = recorder or StepRecorder(clock)
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._connector = connector or NoConnector()
        self._sample: StepSample | None = None
        self._sink: EventSink = NoSink()
        self.grammars: Grammars = NoGrammars()
        self._has_failed = False
        self._unaccounted = 0

    def add(self, request: GenerationRequest, leg: Leg | None = None) -> None:
        """Queue a request, or one leg of it.

        Raises InvalidRequestError or ContextLengthError if it can never run to its end, and
        ServiceUnavailableError when a prefill leg's ticket is not good here. A grammar that `grammars` has
        not prepared is compiled here and now.
        """
        self._check_vocabulary(request.prompt_token_ids, "prompt")
        if isinstance(leg, DecodeLeg):
            for token_ids in leg.outputs.values():
                self._check_vocabulary(token_ids, "outputs")
        self._scheduler.add(self.grammars.prepare(request), self._clock.now(), leg)
        self._connector.flush()

    def abort(self, request_id: str) -> None:
        """End a request and free its blocks at once, without a word; what is left of its hand-off ends too.

        A prefill leg can be aborted after its last token, while its KV is kept. An unknown id is ignored.
        """
        self._scheduler.abort(request_id)
        self._connector.flush()

    def abort_attempt(self, attempt_id: str) -> None:
        """End the hand-offs whose tickets name this attempt, also those of no request known here."""
        self._scheduler.remote_kv.drop_attempt(attempt_id)
        self._connector.flush()

    def has_work(self) -> bool:
        """Whether a step now would bring something; a request may also be waiting for its KV or for room.

        Call `poll` when other workers have been heard of, or at `next_deadline`, and ask again.
        """
        return self._scheduler.has_work()

    def poll(self) -> None:
        """Take in what has come from other workers, let leases lapse, and answer."""
        self._connector.poll()
        self._scheduler.remote_kv.tick(self._clock.now())
        self._connector.flush()
        self._audit()

    def next_deadline(self) -> float | None:
        """The time at which `poll` next has something to do, if nothing comes before."""
        return self._scheduler.remote_kv.next_deadline(self._clock.now())

    def step(self) -> list[TokenDelta]:
        """Compute one batch; what it brought for each choice. A request's failure is a delta, not raised."""
        began = self._clock.now()
        self._connector.poll()
        batch = self._scheduler.schedule(began)
        self._connector.flush()
        self._has_failed = False
        scheduled = self._clock.now()
        result = self._execute(batch)
        executed = self._clock.now()
        deltas = self._scheduler.update(batch, result, executed)
        self._connector.flush()
        is_sound = batch.sequences and not self._has_failed
        self._sample = measure(batch, executed - began) if is_sound else None
        self._audit()
        if self.recorder.is_on:
            times = StepTimes(began, scheduled, executed, self._clock.now())
            self.recorder.saw_step(batch, times, self._scheduler.load())
        return deltas

    @property
    def limits(self) -> SchedulerConfig:
        """As configured; the chunk budget may be lower at present."""
        return self._scheduler.config

    def set_chunk_budget(self, max_num_batched_tokens: int) -> None:
        """How many tokens a step computes from now on."""
        self._scheduler.set_chunk_budget(max_num_batched_tokens)

    def take_stock(self) -> KVBooks:
        """Every KV block, by state and by owner."""
        return self._scheduler.take_stock()

    def load(self) -> LoadReport:
        load, refusals = self._scheduler.load(), self._connector.refusals
        return replace(load, kv_refusals={**load.kv_refusals, **refusals}) if refusals else load

    def take_news(self) -> EngineNews:
        """What has happened since the last time, or was measured in the last step."""
        sample, self._sample = self._sample, None
        events = self._scheduler.journal.take()
        self._sink.publish(events, self._held)
        return EngineNews(events, sample, self._connector.take_samples())

    def kv_snapshot(self) -> list[KVSnapshot]:
        """All that the prefix cache holds, after the last news: ValueError if it has changed since."""
        return self._scheduler.journal.snapshot()

    def publish_to(self, sink: EventSink) -> None:
        """Tell `sink` too what comes into the prefix cache and goes; it is closed with the engine."""
        self._sink = sink

    def obey_grammars(self, grammars: Grammars) -> None:
        """Without this no request with a grammar is taken."""
        self.grammars = grammars

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        self._scheduler.reset_prefix_cache()

    def close(self) -> None:
        self._connector.close()
        self._sink.close()
        self._executor.close()

    def check_invariants(self) -> None:
        """Raises AssertionError if the engine's books are wrong; for tests, and for when it is idle."""
        self._scheduler.check_invariants()

    def _audit(self) -> None:
        """A fault in the books is said once, not at every step; the load report counts on."""
        known, found = self._unaccounted, self._scheduler.audit.run()
        self._unaccounted = found
        if found > known:
            log.error("the KV cache's books are wrong: %d blocks or holds are nobody's", found)

    def _held(self) -> Iterator[bytes]:
        return (one for part in self.kv_snapshot() for one in part.hashes)

    def _check_vocabulary(self, token_ids: Sequence[int], param: str) -> None:
        vocab_size = self.description.vocab_size
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"token id {token_id} is not in the vocabulary, which has {vocab_size} entries",
                    param=param,
                )

    def _execute(self, batch: ScheduledBatch) -> StepResult:
        if not batch.sequences:
            return StepResult()
        try:
            return self._executor.execute(batch)
        except Exception:
            self._has_failed = True
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
