"""Requests come and are aborted at any moment: every answer is its solo answer, and no block stays behind.

The tokens come from what the blocks show (ScriptedExecutor), so this covers the prefix cache, chunks,
preemption, forks and block reuse at once.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.errors import InvalidRequestError
from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import ScriptedEngine

MAX_MODEL_LEN = 24
STEPS_TO_DRAIN = 2000

configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([1, 3, 8]),
    max_model_len=st.just(MAX_MODEL_LEN),
    block_size=st.sampled_from([1, 2, 4]),
    num_blocks=st.integers(6, 24),
    policy=st.sampled_from(["fcfs", "priority"]),
    enable_prefix_cache=st.booleans(),
) | st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.just(MAX_MODEL_LEN),
    max_model_len=st.just(MAX_MODEL_LEN),
    block_size=st.sampled_from([1, 4]),
    num_blocks=st.integers(6, 24),
    enable_chunked_prefill=st.just(False),
)
# Few token ids, so that prefixes meet.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=20) | st.integers(1, 20).map(lambda n: [7] * n)
samplings = st.builds(
    SamplingSpec,
    seed=st.just(0),
    max_tokens=st.integers(0, 12),
    min_tokens=st.integers(0, 3),
    eos_token_ids=st.just(()) | st.just(tuple(range(0, 1000, 7))),
    prompt_logprobs=st.none() | st.just(0),
)


class ChainRecorder(BlockHasher):
    """Remembers each hash's parent."""

    def __init__(self, block_size: int) -> None:
        super().__init__(b"", "recorded", block_size)
        self.parents: dict[BlockHash, BlockHash] = {}

    def extend(self, parent: BlockHash, token_ids: list[int]) -> BlockHash:
        child = super().extend(parent, token_ids)
        self.parents[child] = parent
        return child


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[str, GenerationRequest] = {}
        self.answered: dict[str, GenerationRequest] = {}
        self.num_requests = 0

    @initialize(config=configs)
    def start(self, config: SchedulerConfig) -> None:
        self.config = config
        self.hasher = ChainRecorder(config.block_size)
        self.scripted = ScriptedEngine(config, hasher=self.hasher)

    @rule(
        prompt=prompts,
        sampling=samplings,
        n=st.sampled_from([1, 1, 2, 3]),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "", "other"]),
    )
    def add(self, prompt: list[int], sampling: SamplingSpec, n: int, priority: int, salt: str) -> None:
        self.num_requests += 1
        request = GenerationRequest(
            request_id=str(self.num_requests),
            prompt_token_ids=prompt,
            sampling=sampling,
            n=n,
            priority=priority,
            cache_salt=salt,
        )
        needed = max(len(prompt), min(len(prompt) + sampling.max_tokens, MAX_MODEL_LEN) - 1)
        fits = needed <= self.config.num_blocks * self.config.block_size
        try:
            self.scripted.engine.add(request)
        except InvalidRequestError:
            assert not fits
        else:
            assert fits
            self.alive[request.request_id] = request

    @rule()
    def step(self) -> None:
        has_work = self.scripted.engine.has_work()
        num_batches = len(self.scripted.executor.batches)
        for delta in self.scripted.step():
            assert delta.request_id in self.alive
        assert len(self.scripted.executor.batches) == num_batches + has_work
        if has_work:
            self.check_last_batch()
        self.move_finished()

    def check_last_batch(self) -> None:
        batch = self.scripted.executor.batches[-1]
        assert 1 <= batch.num_tokens <= self.config.max_num_batched_tokens
        assert 1 <= len(batch.sequences) <= self.config.max_num_seqs

    def move_finished(self) -> None:
        last = self.scripted.answers.last
        for request_id, request in list(self.alive.items()):
            ends = [last.get((request_id, choice)) for choice in range(request.n)]
            if all(end is not None and end.finish_reason for end in ends):
                self.answered[request_id] = self.alive.pop(request_id)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.alive)))
        self.scripted.engine.abort(request_id)
        del self.alive[request_id]

    @rule()
    def reset_prefix_cache(self) -> None:
        self.scripted.engine.reset_prefix_cache()

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "scripted"):
            self.scripted.engine.check_invariants()
            assert self.scripted.scheduler.audit.run() == 0

    @invariant()
    def every_cached_block_can_be_reached(self) -> None:
        if hasattr(self, "scripted"):
            cache = self.scripted.scheduler._kv._cache
            roots = {self.hasher.root(), self.hasher.root("other")}
            for block_hash, parent in self.hasher.parents.items():
                if cache.block_of(block_hash) is not None:
                    assert parent in roots or cache.block_of(parent) is not None

    def teardown(self) -> None:
        if not hasattr(self, "scripted"):
            return
        for _ in range(STEPS_TO_DRAIN):
            if not self.alive:
                break
            self.step()
        assert not self.alive
        assert not self.scripted.engine.has_work()
        load = self.scripted.engine.load()
        assert (load.running, load.waiting) == (0, 0)
        assert load.free_blocks + load.cached_blocks == self.config.num_blocks
        for request in self.answered.values():
            self.check_answer(request)

    def check_answer(self, request: GenerationRequest) -> None:
        answers = self.scripted.answers
        for choice in range(request.n):
            assert answers.tokens[request.request_id, choice] == self.scripted.solo_answer(request, choice)
        first = answers.first[request.request_id]
        prompt = request.prompt_token_ids
        assert first.cached_tokens % self.config.block_size == 0
        assert first.cached_tokens < len(prompt)
        if request.sampling.prompt_logprobs is not None:
            assert [entry.token_id for entry in first.prompt_logprobs[1:]] == prompt[1:]
            assert first.cached_tokens == 0


EngineMachine.TestCase.settings = settings(stateful_step_count=60)
TestEngine = EngineMachine.TestCase
