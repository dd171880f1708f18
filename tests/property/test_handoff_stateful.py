"""Hand-offs under every order of events: each answer is its solo answer, and nobody keeps a block.

The decode worker's tokens come from what its blocks show (ScriptedExecutor), so KV that came wrong, late, or
into a block that was already someone else's, shows as a wrong answer or as foreign KV.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.kv_handoff import (
    Commit,
    Committed,
    Fetch,
    Grant,
    HandoffMessage,
    Pull,
    Refuse,
    Renew,
    Reserve,
    Withdraw,
)
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.ticket import Ticket
from atomesh.testing.prefix_loans import fetch_from_decode
from atomesh.testing.scripted_engine import ScriptedEngine
from atomesh.testing.simulated_links import SimulatedLinks
from atomesh.testing.simulated_pair import DECODE, PREFILL, HandedOff, OnFailure, SimulatedPair, is_idle

MAX_MODEL_LEN = 24
KV_TOKENS = 32  # the smallest pool: one context fits with room to spare


def configs(block_size: int) -> st.SearchStrategy[SchedulerConfig]:
    return st.builds(
        SchedulerConfig,
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.sampled_from([1, 3, 8]),
        max_model_len=st.just(MAX_MODEL_LEN),
        block_size=st.just(block_size),
        num_blocks=st.integers(KV_TOKENS // block_size, 4 * KV_TOKENS // block_size),
        policy=st.sampled_from(["fcfs", "priority"]),
        enable_prefix_cache=st.booleans(),
    )


pairs = st.sampled_from([1, 2, 4]).flatmap(
    lambda size: st.builds(SimulatedPair, configs(size), configs(size), st.sampled_from([0.0, 0.1, 0.5]))
)
# Few token ids, so that prefixes meet.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=16) | st.integers(1, 18).map(lambda n: [7] * n)
samplings = st.builds(
    SamplingSpec,
    seed=st.just(0),
    max_tokens=st.sampled_from([0, 1, 2, 3, 6]),
    min_tokens=st.integers(0, 2),
    eos_token_ids=st.just(()) | st.just(tuple(range(0, 1000, 5))),
    prompt_logprobs=st.none() | st.just(0),
)


STRANGER = "kv of s"
grants = st.binary(min_size=15, max_size=17)
indices = st.lists(st.integers(-2, 20), max_size=4)
reasons = st.sampled_from(["full", "ticket", "gone", "coverage", "damaged"])


def messages(ticket: Ticket) -> st.SearchStrategy[HandoffMessage]:
    """What a worker that knows one ticket may say, right or wrong."""
    ids = st.just(ticket.ticket_id)
    tickets = st.sampled_from([ticket, replace(ticket, ttl_s=1.0), replace(ticket, mac=b"")])
    hashes = st.lists(st.binary(min_size=15, max_size=16), max_size=4)
    return (
        st.builds(Reserve, tickets, hashes, st.integers(-1, 2**40))
        | st.builds(Grant, ids, grants, indices)
        | st.builds(Refuse, ids, reasons)
        | st.builds(Commit, ids, grants, st.integers(0, 20))
        | st.builds(Committed, ids)
        | st.builds(Pull, tickets, grants, indices)
        | st.builds(Fetch, tickets, grants, st.integers(-1, 4), hashes)
        | st.builds(Renew, ids)
        | st.builds(Withdraw, ids)
    )


class HandoffMachine(RuleBasedStateMachine):
    pair: SimulatedPair

    @initialize(pair=pairs)
    def start(self, pair: SimulatedPair) -> None:
        self.pair = pair
        stranger = ScriptedEngine(pair.prefill.config)
        engines = {PREFILL: pair.prefill, DECODE: pair.decode, STRANGER: stranger}
        pair.links = SimulatedLinks(engines)

    @property
    def alive(self) -> list[HandedOff]:
        return [one for one in self.pair.requests.values() if not one.is_over]

    @property
    def due(self) -> list[HandedOff]:
        return [one for one in self.alive if one.is_decode_due]

    @rule(
        prompt=prompts,
        sampling=samplings,
        n=st.sampled_from([1, 1, 2, 3]),
        priority=st.integers(-1, 1),
        on_failure=st.sampled_from(["recompute", "recompute", "fail"]),
        num_fetched=st.none() | st.integers(-1, 20),
    )
    def submit(
        self,
        prompt: list[int],
        sampling: SamplingSpec,
        n: int,
        priority: int,
        on_failure: OnFailure,
        num_fetched: int | None,
    ) -> None:
        """Prefill may be told that decode holds some of it, whether or not that is so."""
        request = GenerationRequest(
            request_id=str(len(self.pair.requests)),
            prompt_token_ids=prompt,
            sampling=sampling,
            n=n,
            priority=priority,
        )
        if num_fetched is not None:
            request = fetch_from_decode(self.pair, request, num_fetched)
        self.pair.submit(request, on_failure)

    @rule(times=st.integers(1, 4))
    def step_prefill(self, times: int) -> None:
        for _ in range(times):
            self.pair.step(self.pair.prefill)

    @rule(times=st.integers(1, 4))
    def step_decode(self, times: int) -> None:
        for _ in range(times):
            self.pair.step(self.pair.decode)

    @precondition(lambda self: self.pair.links.routes)
    @rule(data=st.data(), times=st.integers(1, 3))
    def deliver(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            if self.pair.links.routes:
                self.pair.links.advance(data.draw(st.sampled_from(self.pair.links.routes)))

    @precondition(lambda self: self.pair.links.routes)
    @rule(data=st.data(), fault=st.sampled_from(["lost", "damaged"]))
    def deliver_badly(self, data: st.DataObject, fault: str) -> None:
        self.pair.links.advance(data.draw(st.sampled_from(self.pair.links.routes)), fault=fault)

    @precondition(lambda self: self.pair.links.routes)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        self.pair.links.cut(data.draw(st.sampled_from(self.pair.links.routes)))

    @precondition(lambda self: self.pair.requests)
    @rule(data=st.data(), is_prefill=st.booleans())
    def interfere(self, data: st.DataObject, is_prefill: bool) -> None:
        """A third worker that has got hold of a ticket says something."""
        handed_off = data.draw(st.sampled_from(list(self.pair.requests.values())))
        worker = self.pair.prefill if is_prefill else self.pair.decode
        message = data.draw(messages(handed_off.ticket))
        other = self.pair.decode if is_prefill else self.pair.prefill
        incarnation = data.draw(st.sampled_from(["s", other.scheduler.remote_kv.incarnation]))
        remote_kv = worker.scheduler.remote_kv
        remote_kv.heard(f"caller {STRANGER}", message, worker.clock.now(), incarnation)
        self.pair.links.flush()

    @precondition(lambda self: self.pair.links.num_fences)
    @rule()
    def fence(self) -> None:
        self.pair.links.fence()

    @precondition(lambda self: self.due)
    @rule(data=st.data())
    def start_decode(self, data: st.DataObject) -> None:
        self.pair.start_decode(data.draw(st.sampled_from(self.due)))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.pair.abort(data.draw(st.sampled_from(self.alive)))

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.pair.advance_clock(seconds)

    @rule(is_prefill=st.booleans())
    def reset_prefix_cache(self, is_prefill: bool) -> None:
        worker = self.pair.prefill if is_prefill else self.pair.decode
        worker.engine.reset_prefix_cache()

    @rule(is_prefill=st.booleans(), budget=st.sampled_from([1, 2, 8]))
    def change_role(self, is_prefill: bool, budget: int) -> None:
        worker = self.pair.prefill if is_prefill else self.pair.decode
        worker.engine.set_chunk_budget(budget)

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "pair"):
            return
        self.pair.check_invariants()
        for worker in (self.pair.prefill, self.pair.decode):
            assert worker.scheduler.audit.run() == 0
            assert worker.engine.load().kv_imbalances == 0

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        self.pair.run()
        for handed_off in self.pair.requests.values():
            self.check_answer(handed_off)
        self.pair.advance_clock(100.0)
        assert is_idle(self.pair.prefill)
        assert is_idle(self.pair.decode)

    def check_answer(self, handed_off: HandedOff) -> None:
        if handed_off.is_aborted:
            return
        if handed_off.error is not None:
            assert handed_off.on_failure == "fail"
            return
        for choice in range(handed_off.request.n):
            expected = self.pair.prefill.solo_answer(handed_off.request, choice)
            assert handed_off.tokens[choice] == expected
            assert (choice in handed_off.sources) == (len(expected) > 1)


TestHandoff = HandoffMachine.TestCase
TestHandoff.settings = settings(max_examples=60, stateful_step_count=40)
