"""Decides what each engine step computes, and what its result means. Time comes in as `now`, in seconds.

One step mixes decodes and prefill chunks under one token budget: decodes first, so that no prompt stalls a
running stream; then prompts under way; then new ones, in order. Nothing newer enters while an older sequence
waits, and only the last in order is ever preempted, so the first always advances and everybody ends.
"""

from dataclasses import dataclass, replace
from itertools import chain

from atomesh.engine.core.admission import Policy, check_capacity, rank_of
from atomesh.engine.core.answering import Answering
from atomesh.engine.core.arrivals import Arrivals
from atomesh.engine.core.batch import (
    ScheduledBatch,
    ScheduledSequence,
    SequenceOutcome,
    StepResult,
)
from atomesh.engine.core.kv_books import KVAudit, KVBooks, take_stock
from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.legs import check_leg, request_of_leg, sequences_of
from atomesh.engine.core.remote_kv.config import OFF, RemoteKVConfig
from atomesh.engine.core.remote_kv.remote_kv import RemoteKV
from atomesh.engine.core.request import RequestState, SequenceState, TokenSequence
from atomesh.engine.core.roster import Roster
from atomesh.engine.core.step_plan import StepPlan
from atomesh.errors import ConfigurationError, InvalidRequestError
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, PrefillLeg, TokenDelta, WireError
from atomesh.protocol.worker import LoadReport

GROWTH_RESERVE = 100  # a new sequence must leave one block in so many free while others run
_NO_OUTCOME = SequenceOutcome(error="the executor gave no outcome")


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


class Scheduler:
    def __init__(
        self,
        config: SchedulerConfig,
        hasher: BlockHasher,
        remote: RemoteKVConfig | None = None,
        kv: KVCacheManager | None = None,
    ) -> None:
        """With `remote` the scheduler takes part in hand-offs; see `remote_kv`.

        Schedulers that are given one `kv`, of `num_blocks`, share it, as if all their devices were one.
        """
        if hasher.block_size != config.block_size:
            raise ConfigurationError(
                f"the block hasher's block size is {hasher.block_size}, the scheduler's {config.block_size}"
            )
        self.config = config
        self._chunk_budget = config.max_num_batched_tokens
        is_caching = config.enable_prefix_cache
        self._kv = kv or KVCacheManager(config.num_blocks, hasher, enable_prefix_cache=is_caching)
        self.journal = self._kv.journal  # of the prefix cache
        self.remote_kv = RemoteKV(remote or OFF, self._kv)
        self._roster = Roster(self._kv)
        self.audit = KVAudit(self._kv.pool, (self._roster, self._kv, self.remote_kv) if kv is None else ())
        self._arrivals = Arrivals(self._roster, self.remote_kv.receiver, self.remote_kv.fetcher)
        self._answering = Answering(
            self._roster, self._kv, self.remote_kv.sender, config.max_model_len, config.max_num_seqs
        )
        self._failed: list[TokenDelta] = []
        self._totals = Totals()

    def add(self, request: GenerationRequest, now: float, leg: Leg | None = None) -> None:
        """Queue a request, or one leg of it.

        Raises InvalidRequestError or ContextLengthError if it can never run to its end, and
        ServiceUnavailableError when a prefill leg's ticket is not good here.
        """
        config = self.config
        if self._roster.request(request.request_id) is not None:
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use; every request needs its own"
            )
        check_capacity(request, config.max_model_len, config.num_blocks * config.block_size)
        check_leg(request, leg, config.max_model_len)
        if isinstance(leg, PrefillLeg):
            self.remote_kv.check_in(leg.ticket, now)
        arrival = self._roster.next_arrival()
        rank = rank_of(config.policy, request.priority, arrival)
        state = RequestState(request_of_leg(request, leg), arrival_s=now, leg=leg)
        for sequence in sequences_of(state, (rank, arrival), self._roster.next_sequence_id):
            self._roster.enter(sequence, SequenceState.WAITING)
        self._arrivals.claim(state, now)

    def abort(self, request_id: str) -> None:
        """End a request without a word and free its blocks; one that is unknown or has ended is ignored.

        What is left of its hand-off, maybe after its leg, ends too.
        """
        state = self._roster.request(request_id)
        self.remote_kv.drop(request_id, state)
        if state is not None:
            for sequence in list(state.sequences.values()):
                self._roster.leave(sequence)

    def has_work(self) -> bool:
        """Whether a step now would bring something; a request may also be waiting for its KV or for room."""
        roster = self._roster
        if roster.running or roster.arrived or self._failed or self._arrivals.has_news:
            return True
        return bool(roster.waiting) and self._kv.fits(roster.waiting.first)

    def schedule(self, now: float) -> ScheduledBatch:
        """The next step's batch, empty when there is nothing to compute. Answer each batch with `update`."""
        self.remote_kv.tick(now)
        self._settle_transfers(now)
        self._seat_arrived(now)
        plan = StepPlan(self._chunk_budget)
        self._schedule_decodes(plan)
        self._schedule_prefills(plan)
        self._schedule_waiting(plan, now)
        return plan.batch()

    def update(self, batch: ScheduledBatch, result: StepResult, now: float) -> list[TokenDelta]:
        """Take in a step's result; what it brought for each choice, in the order of the batch."""
        deltas, self._failed = self._failed, []
        outcomes = result.outcomes
        for scheduled in batch.sequences:
            sequence = self._roster.sequence(scheduled.sequence_id)
            if sequence is None:
                continue  # its request has failed with another of its choices
            outcome = outcomes.get(scheduled.sequence_id, _NO_OUTCOME)
            error = _find_error(scheduled, outcome)
            if error is not None:
                deltas.append(self._fail(sequence, error))
                if not outcome.is_own_fault:
                    self._kv.reset_prefix_cache()  # its KV may be what is wrong: nobody may find it there
            else:
                self._advance(sequence, scheduled, outcome, now, deltas)
        self._kv.end_step()
        self._totals.steps += bool(batch.sequences)
        return deltas

    def set_chunk_budget(self, max_num_batched_tokens: int) -> None:
        """How many tokens a step computes from now on; ConfigurationError for what the configuration bars."""
        replace(self.config, max_num_batched_tokens=max_num_batched_tokens)
        self._chunk_budget = max_num_batched_tokens

    def load(self) -> LoadReport:
        totals, pool = self._totals, self._kv.pool
        return LoadReport(
            running=len(self._roster.running),
            waiting=self._roster.num_idle,
            free_blocks=pool.num_free,
            cached_blocks=pool.num_idle,
            total_blocks=self.config.num_blocks,
            prefix_cache_queries=totals.prefix_cache_queries,
            prefix_cache_hits=totals.prefix_cache_hits,
            preemptions=totals.preemptions,
            steps=totals.steps,
            prompt_tokens=totals.prompt_tokens,
            generation_tokens=self._answering.num_tokens,
            held_blocks=pool.num_held,
            reserved_blocks=pool.num_reserved,
            quarantined_blocks=pool.num_quarantined,
            unaccounted_blocks=self.audit.unaccounted,
            kv_imbalances=self.audit.imbalances,
            kv_transfers=dict(self.remote_kv.transfers),
            kv_refusals=dict(self.remote_kv.refusals),
        )

    def take_stock(self) -> KVBooks:
        """Every KV block, by state and by owner."""
        return take_stock(self._kv.pool, (*self._roster.holds(), *self.remote_kv.holds()))

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        self._kv.reset_prefix_cache()

    def _settle_transfers(self, now: float) -> None:
        for ended in self._arrivals.settle(now):
            words = f"the KV cache did not reach the decode worker ({ended.failure}); try again"
            self._failed.append(self._fail(ended.request.first_sequence, WireError("EngineError", words)))
        self._arrivals.settle_fetches(now)

    def _seat_arrived(self, now: float) -> None:
        """Sequences whose KV has come take the seats that older ones, if they have room, will not need."""
        roster = self._roster
        while roster.arrived:
            sequence = roster.arrived.first
            older = 0 if self.remote_kv.receiver.is_blocked else roster.waiting.num_before(sequence)
            if len(roster.running) + older >= self.config.max_num_seqs:
                return
            roster.move(sequence, SequenceState.RUNNING)
            self._note_first_schedule(sequence, 0, now)

    def _schedule_decodes(self, plan: StepPlan) -> None:
        for sequence in [one for one in self._roster.running if one.num_uncomputed_tokens == 1]:
            if plan.budget == 0:
                return
            if sequence.state is SequenceState.RUNNING and self._make_room(sequence, plan):
                plan.take(sequence, 1)

    def _make_room(self, sequence: TokenSequence, plan: StepPlan) -> bool:
        """Room for its last token, if need be at the cost of the last in order; False if that is itself."""
        while not self._kv.grow(sequence, plan.copies):
            victim = self._roster.last_holder
            if victim is sequence and self.remote_kv.yield_blocks():
                continue
            self._roster.send_to_wait(victim)
            self._totals.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _schedule_prefills(self, plan: StepPlan) -> None:
        for sequence in [one for one in self._roster.running if one.num_uncomputed_tokens > 1]:
            if plan.budget == 0:
                return
            plan.take(sequence, min(plan.budget, sequence.num_uncomputed_tokens))

    def _schedule_waiting(self, plan: StepPlan, now: float) -> None:
        roster, receiver = self._roster, self.remote_kv.receiver
        receiver.is_blocked = False
        while roster.waiting and plan.budget and len(roster.running) < self.config.max_num_seqs:
            sequence = roster.waiting.first
            claim = self._arrivals.pending_pull(sequence.request)
            if self._arrivals.fetch(sequence.request, self._growth_reserve, now):
                continue
            if claim is None:
                enters = self._admit(sequence, plan, now)
            else:
                enters = self._arrivals.pull(claim, self._growth_reserve, now)
            if not enters:
                receiver.is_blocked = True
                return

    def _admit(self, sequence: TokenSequence, plan: StepPlan, now: float) -> bool:
        matched = self._kv.match(sequence)
        num_cached = len(matched) * self.config.block_size
        if not self.config.enable_chunked_prefill and sequence.num_tokens - num_cached > plan.budget:
            return False
        if not self._kv.admit(sequence, matched, self._growth_reserve):
            return False
        self._roster.move(sequence, SequenceState.RUNNING)
        self._note_first_schedule(sequence, num_cached, now)
        plan.take(sequence, min(plan.budget, sequence.num_uncomputed_tokens))
        return True

    @property
    def _growth_reserve(self) -> int:
        return self.config.num_blocks // GROWTH_RESERVE if self._roster.running else 0

    def _note_first_schedule(self, sequence: TokenSequence, num_cached: int, now: float) -> None:
        state = sequence.request
        if state.scheduled_s is not None:
            return
        state.scheduled_s = now
        state.cached_tokens = num_cached
        if isinstance(state.leg, PrefillLeg):
            self.remote_kv.sender.begin(sequence, state.leg)
        is_looked_up = not sequence.wants_prompt_logprobs and not isinstance(state.leg, DecodeLeg)
        if self.config.enable_prefix_cache and is_looked_up:
            self._totals.prefix_cache_queries += len(sequence.prompt_token_ids)
            self._totals.prefix_cache_hits += num_cached

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
        leg = sequence.request.leg
        if not sequence.num_uncomputed_tokens:
            sequence.settle_prompt()
            deltas += self._answering.answer(sequence, outcome.sampled, now)
        elif isinstance(leg, PrefillLeg):
            self.remote_kv.sender.advance(leg)

    def _fail(self, sequence: TokenSequence, error: WireError) -> TokenDelta:
        """End the whole request of a sequence that cannot go on."""
        request_id = sequence.request.request.request_id
        self.abort(request_id)
        return TokenDelta(
            request_id=request_id,
            choice=sequence.choices[0],
            finish_reason="error",
            error=error,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError if a block, sequence or request is lost or counted twice."""
        roster = self._roster
        roster.check_invariants()
        if len(roster.running) > self.config.max_num_seqs:
            raise AssertionError(f"{len(roster.running)} sequences run; {self.config.max_num_seqs} may")
        if {id(one.request) for one in roster.arriving} != set(map(id, self.remote_kv.claims())):
            raise AssertionError("the arriving sequences are not those that wait for a transfer")
        holders = (*roster.running, *roster.arrived, *roster.arriving)
        self._kv.check_invariants(
            holders, chain.from_iterable(blocks for _, blocks in self.remote_kv.holds())
        )


def _find_error(scheduled: ScheduledSequence, outcome: SequenceOutcome) -> WireError | None:
    if outcome.error is not None:
        return WireError("InvalidRequestError" if outcome.is_own_fault else "EngineError", outcome.error)
    if len(outcome.sampled) != len(scheduled.choices):
        words = f"the executor sampled {len(outcome.sampled)} tokens instead of {len(scheduled.choices)}"
        return WireError("EngineError", words)
    return None
