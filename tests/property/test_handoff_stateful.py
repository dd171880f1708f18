"""Hand-offs under every order of events: each answer is its solo answer, and nobody keeps a block.

The decode worker's tokens come from what its blocks show (ScriptedExecutor), so KV that came wrong, late, or
into a block that was already someone else's, shows as a wrong answer or as foreign KV.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.simulated_pair import HandedOff, OnFailure, SimulatedPair, is_idle

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


class HandoffMachine(RuleBasedStateMachine):
    pair: SimulatedPair

    @initialize(pair=pairs)
    def start(self, pair: SimulatedPair) -> None:
        self.pair = pair

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
    )
    def submit(
        self, prompt: list[int], sampling: SamplingSpec, n: int, priority: int, on_failure: OnFailure
    ) -> None:
        request = GenerationRequest(
            request_id=str(len(self.pair.requests)),
            prompt_token_ids=prompt,
            sampling=sampling,
            n=n,
            priority=priority,
        )
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

    @rule()
    def reset_prefix_cache(self) -> None:
        self.pair.decode.engine.reset_prefix_cache()

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check_invariants()

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
