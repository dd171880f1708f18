"""Decides what each engine step computes, and what its result means. Time comes in as `now`, in seconds.

One step mixes decodes and prefill chunks under one token budget: decodes first, so that no prompt stalls a
running stream; then prompts under way; then new ones, in order. Nothing newer enters while an older sequence
waits, and only the last in order is ever preempted, so the first always advances and everybody ends.
"""

from dataclasses import dataclass

from atomesh.engine.core.admission import Policy, SequenceQueue, check_capacity, rank_of
from atomesh.engine.core.batch import (
    SampledToken,
    ScheduledBatch,
    ScheduledSequence,
    SequenceOutcome,
    StepResult,
)
from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.request import RequestState, SequenceState, TokenSequence
from atomesh.engine.core.step_plan import StepPlan
from atomesh.engine.core.stop import find_stop
from atomesh.errors import ConfigurationError, InvalidRequestError
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.generation import GenerationRequest, TokenDelta, WireError
from atomesh.protocol.worker import LoadReport

GROWTH_RESERVE = 100  # a new sequence must leave one block in so many free while others run


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one engine: lengths, budget and `block_size` in tokens, `num_blocks` in KV blocks."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    policy: Policy = "fcfs"
    enable_prefix_cache: bool = True
    enable_chunked_prefill: bool = True

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_blocks"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigurationError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than max_model_len, which is "
                f"{self.max_model_len}: without chunked prefill a whole prompt must fit into one step; "
                "raise the one, lower the other, or enable chunked prefill"
            )


@dataclass(slots=True)
class Totals:
    """Running totals since the start."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class Scheduler:
    def __init__(self, config: SchedulerConfig, hasher: BlockHasher) -> None:
        if hasher.block_size != config.block_size:
            raise ConfigurationError(
                f"the block hasher's block size is {hasher.block_size}, the scheduler's {config.block_size}"
            )
        self.config = config
        self._kv = KVCacheManager(config.num_blocks, hasher, enable_prefix_cache=config.enable_prefix_cache)
        self._waiting = SequenceQueue()
        self._running = SequenceQueue()
        self._requests: dict[str, RequestState] = {}
        self._sequences: dict[int, TokenSequence] = {}
        self._num_arrivals = 0
        self._num_sequences = 0
        self._totals = Totals()

    def add(self, request: GenerationRequest, now: float) -> None:
        """Queue a request; InvalidRequestError or ContextLengthError if it can never run to its end."""
        config = self.config
        if request.request_id in self._requests:
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use; every request needs its own"
            )
        check_capacity(request, config.max_model_len, config.num_blocks * config.block_size)
        rank = rank_of(config.policy, request.priority, self._num_arrivals)
        state = RequestState(request, arrival_s=now)
        sequence = TokenSequence(
            sequence_id=self._next_sequence_id(),
            request=state,
            choices=tuple(range(request.n)),
            order_key=(rank, self._num_arrivals, 0),
            sampling=request.sampling,
            prompt_token_ids=request.prompt_token_ids,
        )
        self._num_arrivals += 1
        self._requests[request.request_id] = state
        self._adopt(sequence)
        self._waiting.add(sequence)

    def abort(self, request_id: str) -> None:
        """End a request without a word and free its blocks; one that is unknown or has ended is ignored."""
        state = self._requests.get(request_id)
        if state is not None:
            for sequence in list(state.sequences.values()):
                self._retire(sequence)

    def has_work(self) -> bool:
        return bool(self._requests)

    def schedule(self, now: float) -> ScheduledBatch:
        """The next step's batch, empty only when there is no work. Answer each batch with `update`."""
        plan = StepPlan(self.config.max_num_batched_tokens)
        self._schedule_decodes(plan)
        self._schedule_prefills(plan)
        self._schedule_waiting(plan, now)
        return plan.batch()

    def update(self, batch: ScheduledBatch, result: StepResult, now: float) -> list[TokenDelta]:
        """Take in a step's result; what it brought for each choice, in the order of the batch."""
        deltas: list[TokenDelta] = []
        outcomes = result.outcomes
        for scheduled in batch.sequences:
            sequence = self._sequences.get(scheduled.sequence_id)
            if sequence is None:
                continue  # its request has failed with another of its choices
            outcome = outcomes.get(scheduled.sequence_id)
            error = _find_error(scheduled, outcome)
            if outcome is None or error is not None:
                deltas.append(self._fail(sequence, error or "no outcome"))
            else:
                self._advance(sequence, scheduled, outcome, now, deltas)
        self._kv.end_step()
        self._totals.steps += 1
        return deltas

    def load(self) -> LoadReport:
        totals = self._totals
        return LoadReport(
            running=len(self._running),
            waiting=len(self._waiting),
            free_blocks=self._kv.num_free_blocks,
            cached_blocks=self._kv.num_idle_blocks,
            total_blocks=self.config.num_blocks,
            prefix_cache_queries=totals.prefix_cache_queries,
            prefix_cache_hits=totals.prefix_cache_hits,
            preemptions=totals.preemptions,
            steps=totals.steps,
            prompt_tokens=totals.prompt_tokens,
            generation_tokens=totals.generation_tokens,
        )

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        self._kv.reset_prefix_cache()

    def _schedule_decodes(self, plan: StepPlan) -> None:
        for sequence in [one for one in self._running if one.num_uncomputed_tokens == 1]:
            if plan.budget == 0:
                return
            if sequence.state is SequenceState.RUNNING and self._make_room(sequence, plan):
                plan.take(sequence, 1)

    def _make_room(self, sequence: TokenSequence, plan: StepPlan) -> bool:
        """Room for its last token, if need be at the cost of the last in order; False if that is itself."""
        while not self._kv.grow(sequence, plan.copies):
            victim = self._running.last
            self._send_to_wait(victim)
            self._totals.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _schedule_prefills(self, plan: StepPlan) -> None:
        for sequence in [one for one in self._running if one.num_uncomputed_tokens > 1]:
            if plan.budget == 0:
                return
            plan.take(sequence, min(plan.budget, sequence.num_uncomputed_tokens))

    def _schedule_waiting(self, plan: StepPlan, now: float) -> None:
        while self._waiting and plan.budget and len(self._running) < self.config.max_num_seqs:
            sequence = self._waiting.first
            if not self._admit(sequence, plan, now):
                return
            plan.take(sequence, min(plan.budget, sequence.num_uncomputed_tokens))

    def _admit(self, sequence: TokenSequence, plan: StepPlan, now: float) -> bool:
        matched = self._kv.match(sequence)
        num_cached = len(matched) * self.config.block_size
        if not self.config.enable_chunked_prefill and sequence.num_tokens - num_cached > plan.budget:
            return False
        reserve = self.config.num_blocks // GROWTH_RESERVE if self._running else 0
        if not self._kv.admit(sequence, matched, reserve):
            return False
        self._waiting.remove(sequence)
        self._running.add(sequence)
        sequence.state = SequenceState.RUNNING
        if sequence.request.scheduled_s is None:
            self._note_first_schedule(sequence, num_cached, now)
        return True

    def _note_first_schedule(self, sequence: TokenSequence, num_cached: int, now: float) -> None:
        sequence.request.scheduled_s = now
        sequence.request.cached_tokens = num_cached
        if self.config.enable_prefix_cache and not sequence.wants_prompt_logprobs:
            self._totals.prefix_cache_queries += len(sequence.prompt_token_ids)
            self._totals.prefix_cache_hits += num_cached

    def _send_to_wait(self, sequence: TokenSequence) -> None:
        """Take a running sequence's blocks; what they held is computed again when there is room."""
        self._running.remove(sequence)
        self._kv.release(sequence)
        if sequence.wants_prompt_logprobs:
            sequence.request.prompt_logprobs.clear()
        sequence.state = SequenceState.WAITING
        self._waiting.add(sequence)

    def _advance(
        self,
        sequence: TokenSequence,
        scheduled: ScheduledSequence,
        outcome: SequenceOutcome,
        now: float,
        deltas: list[TokenDelta],
    ) -> None:
        sequence.num_computed_tokens = scheduled.end
        self._kv.register(sequence)
        if sequence.wants_prompt_logprobs:
            sequence.request.prompt_logprobs += outcome.prompt_logprobs
        if sequence.is_first_prefill:
            self._totals.prompt_tokens += len(scheduled.token_ids)
        if sequence.num_uncomputed_tokens:
            return
        sequence.settle_prompt()
        if len(sequence.choices) == 1:
            deltas.append(self._append(sequence, outcome.sampled[0] if outcome.sampled else None, now))
        else:
            deltas += self._fork(sequence, outcome.sampled, now)

    def _fork(self, parent: TokenSequence, sampled: tuple[SampledToken, ...], now: float) -> list[TokenDelta]:
        """Split a sequence whose prompt is computed, one for each choice; those beyond the seats wait."""
        branches = self._branches(parent)
        tokens = sampled or (None,) * len(branches)
        deltas = [self._append(branch, token, now) for branch, token in zip(branches, tokens, strict=True)]
        for branch in reversed(branches):
            if len(self._running) > self.config.max_num_seqs and branch.state is SequenceState.RUNNING:
                self._send_to_wait(branch)
        return deltas

    def _branches(self, parent: TokenSequence) -> list[TokenSequence]:
        branches = [parent.branch(self._next_sequence_id(), choice) for choice in parent.choices]
        for branch in branches:
            self._kv.fork(parent, branch)
            self._adopt(branch)
        self._retire(parent)
        for branch in branches:
            branch.state = SequenceState.RUNNING
            self._running.add(branch)
        return branches

    def _append(self, sequence: TokenSequence, sampled: SampledToken | None, now: float) -> TokenDelta:
        if sampled is not None:
            sequence.output_token_ids.append(sampled.token_id)
            self._totals.generation_tokens += 1
        stop = find_stop(sequence, self.config.max_model_len)
        delta = sequence.request.delta(sequence.choices[0], sampled, stop, now)
        if stop is not None:
            self._retire(sequence)
        return delta

    def _fail(self, sequence: TokenSequence, error: str) -> TokenDelta:
        """End the whole request of a sequence that cannot go on.

        Its KV may be what is wrong with it, so no later request may find it in the prefix cache.
        """
        request_id = sequence.request.request.request_id
        self.abort(request_id)
        self._kv.reset_prefix_cache()
        return TokenDelta(
            request_id=request_id,
            choice=sequence.choices[0],
            finish_reason="error",
            error=WireError("EngineError", error),
        )

    def _next_sequence_id(self) -> int:
        self._num_sequences += 1
        return self._num_sequences

    def _adopt(self, sequence: TokenSequence) -> None:
        self._sequences[sequence.sequence_id] = sequence
        sequence.request.sequences[sequence.sequence_id] = sequence

    def _retire(self, sequence: TokenSequence) -> None:
        """The sequence has ended; with its last sequence a request ends too."""
        queue = self._running if sequence.state is SequenceState.RUNNING else self._waiting
        queue.remove(sequence)
        self._kv.release(sequence)
        sequence.state = SequenceState.FINISHED
        state = sequence.request
        del self._sequences[sequence.sequence_id], state.sequences[sequence.sequence_id]
        if not state.sequences:
            del self._requests[state.request.request_id]

    def check_invariants(self) -> None:
        """Raises AssertionError if a block, sequence or request is lost or counted twice."""
        self._waiting.check_invariants()
        self._running.check_invariants()
        if len(self._running) > self.config.max_num_seqs:
            raise AssertionError(f"{len(self._running)} sequences run; {self.config.max_num_seqs} may")
        queued = {one.sequence_id: one for queue in (self._waiting, self._running) for one in queue}
        owned = {key: one for state in self._requests.values() for key, one in state.sequences.items()}
        if (
            queued != self._sequences
            or owned != self._sequences
            or not all(map(self._is_sound, owned.values()))
        ):
            raise AssertionError("queues, requests and sequences disagree")
        self._kv.check_invariants(self._running)

    def _is_sound(self, sequence: TokenSequence) -> bool:
        if sequence in self._running:
            return sequence.state is SequenceState.RUNNING and sequence.num_uncomputed_tokens > 0
        return sequence.state is SequenceState.WAITING and not sequence.block_table


def _find_error(scheduled: ScheduledSequence, outcome: SequenceOutcome | None) -> str | None:
    if outcome is None:
        return "the executor gave no outcome"
    if outcome.error is None and len(outcome.sampled) != len(scheduled.choices):
        return f"the executor sampled {len(outcome.sampled)} tokens instead of {len(scheduled.choices)}"
    return outcome.error
