import pytest

from atomesh.engine.core.batch import SampledToken, ScheduledBatch, SequenceOutcome, StepResult
from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.errors import ConfigurationError, ContextLengthError, InvalidRequestError
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import scripted_request

SIZES = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "block_size": 4,
    "num_blocks": 32,
}


def scheduler(**overrides: object) -> Scheduler:
    config = SchedulerConfig(**{**SIZES, **overrides})
    return Scheduler(config, BlockHasher(b"secret", "m", config.block_size))


def request(name: str, prompt_len: int, max_tokens: int = 8, **fields: object) -> GenerationRequest:
    prompt = [ord(name) * 10 + i for i in range(prompt_len)]
    return scripted_request(name, prompt, SamplingSpec(seed=0, max_tokens=max_tokens), **fields)


def answer(batch: ScheduledBatch, token_id: int = 3) -> StepResult:
    return StepResult(
        {
            one.sequence_id: SequenceOutcome(tuple(SampledToken(token_id + choice) for choice in one.choices))
            for one in batch.sequences
        }
    )


def step(one: Scheduler, now: float = 0.0) -> tuple[ScheduledBatch, list[TokenDelta]]:
    batch = one.schedule(now)
    deltas = one.update(batch, answer(batch), now)
    one.check_invariants()
    return batch, deltas


def shape(batch: ScheduledBatch) -> list[tuple[int, int, int]]:
    """(sequence id, start, number of tokens) of each scheduled sequence."""
    return [(one.sequence_id, one.start, len(one.token_ids)) for one in batch.sequences]


@pytest.mark.parametrize("name", sorted(SIZES))
def test_sizes_are_at_least_one(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is 0; it must be at least 1"):
        SchedulerConfig(**{**SIZES, name: 0})


def test_without_chunks_a_whole_prompt_must_fit_into_a_step() -> None:
    with pytest.raises(ConfigurationError, match="max_num_batched_tokens is 16, less than max_model_len"):
        SchedulerConfig(**SIZES, enable_chunked_prefill=False)


def test_the_hashers_block_size_must_be_the_schedulers() -> None:
    with pytest.raises(ConfigurationError, match="block size is 8, the scheduler's 4"):
        Scheduler(SchedulerConfig(**SIZES), BlockHasher(b"", "m", 8))


def test_a_long_prompt_is_computed_in_chunks_and_samples_only_with_the_last() -> None:
    one = scheduler()
    one.add(request("a", 40), now=0.0)
    batches = [step(one)[0] for _ in range(4)]
    assert [shape(batch) for batch in batches] == [[(1, 0, 16)], [(1, 16, 16)], [(1, 32, 8)], [(1, 40, 1)]]
    assert [batch.sequences[0].choices for batch in batches] == [(), (), (0,), (0,)]
    assert batches[3].sequences[0].token_ids == [3]


def test_decodes_come_first_and_chunks_take_what_is_left_of_the_budget() -> None:
    one = scheduler()
    one.add(request("a", 4), now=0.0)
    step(one)
    one.add(request("b", 40), now=0.0)
    one.add(request("c", 10), now=0.0)
    assert shape(one.schedule(0.0)) == [(1, 4, 1), (2, 0, 15)]


def test_prompts_share_a_step_while_the_budget_lasts() -> None:
    one = scheduler()
    for name, prompt_len in (("a", 6), ("b", 6), ("c", 6)):
        one.add(request(name, prompt_len), now=0.0)
    assert shape(step(one)[0]) == [(1, 0, 6), (2, 0, 6), (3, 0, 4)]
    assert shape(step(one)[0]) == [(1, 6, 1), (2, 6, 1), (3, 4, 2)]


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it_whole() -> None:
    one = scheduler(max_num_batched_tokens=64, enable_chunked_prefill=False)
    one.add(request("a", 40), now=0.0)
    one.add(request("b", 30), now=0.0)
    one.add(request("c", 10), now=0.0)
    assert shape(step(one)[0]) == [(1, 0, 40)]
    assert shape(step(one)[0]) == [(1, 40, 1), (2, 0, 30), (3, 0, 10)]


def test_seats_are_bounded() -> None:
    one = scheduler(max_num_seqs=2)
    for name in "abc":
        one.add(request(name, 2), now=0.0)
    step(one)
    assert (one.load().running, one.load().waiting) == (2, 1)


def test_priority_goes_before_arrival_only_if_the_policy_says_so() -> None:
    for policy, expected in (("fcfs", [1, 2]), ("priority", [2, 1])):
        one = scheduler(policy=policy)
        one.add(request("a", 2, priority=1), now=0.0)
        one.add(request("b", 2, priority=0), now=0.0)
        assert [entry.sequence_id for entry in one.schedule(0.0).sequences] == expected


def test_the_newest_is_preempted_and_computed_again_with_what_it_had() -> None:
    one = scheduler(num_blocks=4, enable_prefix_cache=False)
    one.add(request("a", 7), now=0.0)
    one.add(request("b", 7), now=0.0)
    step(one)
    step(one)
    batch, _ = step(one)
    assert shape(batch) == [(1, 8, 1)]
    assert (one.load().preemptions, one.load().running, one.load().waiting) == (1, 1, 1)
    while not any(delta.finish_reason for delta in step(one)[1]):
        pass
    assert shape(step(one)[0]) == [(2, 0, 9)]


def test_the_oldest_is_never_preempted() -> None:
    one = scheduler(num_blocks=4, max_num_batched_tokens=64)
    for name in "abc":
        one.add(request(name, 5, max_tokens=11), now=0.0)
    finished: list[str] = []
    while one.has_work():
        batch, deltas = step(one)
        assert batch.sequences[0].sequence_id == len(finished) + 1
        finished += [delta.request_id for delta in deltas if delta.finish_reason]
    assert finished == ["a", "b", "c"]


def test_choices_are_sampled_together_then_go_their_own_ways() -> None:
    one = scheduler()
    one.add(request("a", 6, n=3), now=0.0)
    batch, deltas = step(one)
    assert batch.sequences[0].choices == (0, 1, 2)
    assert [(delta.choice, delta.token_ids) for delta in deltas] == [(0, [3]), (1, [4]), (2, [5])]
    batch, _ = step(one)
    assert [(entry.choices, entry.token_ids, entry.start) for entry in batch.sequences] == [
        ((0,), [3], 6),
        ((1,), [4], 6),
        ((2,), [5], 6),
    ]
    assert len(batch.copies) == 2
    assert len({entry.block_table[1] for entry in batch.sequences}) == 3
    assert len({entry.block_table[0] for entry in batch.sequences}) == 1
    assert one.load().total_blocks - one.load().free_blocks == 4


def test_choices_beyond_the_seats_wait_and_find_the_prompt_cached() -> None:
    one = scheduler(max_num_seqs=2)
    one.add(request("a", 9, n=3, max_tokens=2), now=0.0)
    step(one)
    assert (one.load().running, one.load().waiting) == (2, 1)
    _, deltas = step(one)
    assert [(delta.choice, delta.finish_reason) for delta in deltas] == [(0, "length"), (1, "length")]
    batch, deltas = step(one)
    assert [(entry.start, entry.token_ids) for entry in batch.sequences] == [(8, [batch_prompt_end(), 5])]
    assert [(delta.choice, delta.finish_reason) for delta in deltas] == [(2, "length")]
    assert not one.has_work()
    assert one.load().preemptions == 0


def batch_prompt_end() -> int:
    return ord("a") * 10 + 8


def test_cached_tokens_and_timings_come_once_with_the_first_delta() -> None:
    one = scheduler()
    one.add(request("a", 9, max_tokens=1), now=0.0)
    step(one)
    prompt = request("a", 9).prompt_token_ids
    one.add(
        scripted_request("again", prompt, SamplingSpec(seed=0, max_tokens=2, temperature=1.0), n=2), now=1.0
    )
    batch = one.schedule(3.5)
    first, second = one.update(batch, answer(batch), 4.0)
    assert (first.cached_tokens, first.timings.queue_s, first.timings.prefill_s) == (8, 2.5, 0.5)
    assert (second.cached_tokens, second.timings) == (None, None)
    assert step(one)[1][0].cached_tokens is None
    load = one.load()
    assert (load.prefix_cache_queries, load.prefix_cache_hits, load.prompt_tokens) == (18, 8, 10)
    assert load.generation_tokens == 5


def test_a_cold_prompt_has_no_cached_tokens() -> None:
    one = scheduler()
    one.add(request("a", 9), now=0.0)
    assert step(one)[1][0].cached_tokens == 0


def test_an_echo_computes_the_prompt_and_ends_without_a_token() -> None:
    one = scheduler()
    one.add(request("a", 20, max_tokens=0), now=0.0)
    assert step(one)[1] == []
    batch, (delta,) = step(one)
    assert batch.sequences[0].choices == ()
    assert (delta.token_ids, delta.finish_reason, delta.cached_tokens) == ([], "length", 0)
    assert not one.has_work()


def test_an_abort_frees_everything_in_every_state() -> None:
    one = scheduler(max_num_seqs=2)
    for name in "abc":
        one.add(request(name, 20, n=2), now=0.0)
    step(one)
    for name in ("a", "b", "c", "unknown", "a"):
        one.abort(name)
        one.check_invariants()
    load = one.load()
    assert not one.has_work()
    assert (load.running, load.waiting, load.free_blocks + load.cached_blocks) == (0, 0, 32)


def test_an_id_in_use_is_refused_and_free_again_when_its_request_has_ended() -> None:
    one = scheduler()
    one.add(request("a", 2, max_tokens=1), now=0.0)
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        one.add(request("a", 2), now=0.0)
    step(one)
    one.add(request("a", 2), now=0.0)


def test_what_can_never_fit_is_refused_and_leaves_no_trace() -> None:
    one = scheduler(num_blocks=4)
    with pytest.raises(InvalidRequestError, match="room for 17 tokens"):
        one.add(request("a", 10, max_tokens=8), now=0.0)
    with pytest.raises(ContextLengthError):
        one.add(request("a", 64), now=0.0)
    assert not one.has_work()


def test_one_choices_error_ends_its_whole_request_and_no_other() -> None:
    one = scheduler()
    one.add(request("a", 5, n=2), now=0.0)
    one.add(request("b", 5), now=0.0)
    step(one)
    batch = one.schedule(0.0)
    outcomes = dict(answer(batch).outcomes)
    outcomes[batch.sequences[0].sequence_id] = SequenceOutcome(error="its logits are not finite")
    failed, good = one.update(batch, StepResult(outcomes), 0.0)
    one.check_invariants()
    assert (failed.request_id, failed.finish_reason) == ("a", "error")
    assert (failed.error.kind, failed.error.message) == ("EngineError", "its logits are not finite")
    assert (good.request_id, good.token_ids) == ("b", [3])
    assert one.load().running == 1


def test_what_a_failed_request_computed_is_not_found_again() -> None:
    one = scheduler()
    one.add(request("a", 9), now=0.0)
    step(one)
    batch = one.schedule(0.0)
    one.update(batch, StepResult({1: SequenceOutcome(error="its logits are not finite")}), 0.0)
    assert (one.load().free_blocks, one.load().cached_blocks) == (32, 0)
    one.add(request("a", 9), now=0.0)
    assert step(one)[1][0].cached_tokens == 0


def test_a_request_that_fails_by_its_own_fault_costs_nobody_the_cache() -> None:
    one = scheduler()
    one.add(request("a", 9, max_tokens=1), now=0.0)
    step(one)
    one.add(request("b", 9), now=0.0)
    batch = one.schedule(0.0)
    outcome = SequenceOutcome(error="nothing is allowed", is_own_fault=True)
    (failed,) = one.update(batch, StepResult({batch.sequences[0].sequence_id: outcome}), 0.0)
    one.check_invariants()
    assert (failed.error.kind, failed.error.message) == ("InvalidRequestError", "nothing is allowed")
    assert one.load().cached_blocks == 2


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ({}, "the executor gave no outcome"),
        ({1: SequenceOutcome()}, "the executor sampled 0 tokens instead of 1"),
    ],
)
def test_an_executor_that_breaks_its_contract_fails_the_request(
    outcomes: dict[int, SequenceOutcome], message: str
) -> None:
    one = scheduler()
    one.add(request("a", 5), now=0.0)
    batch = one.schedule(0.0)
    (delta,) = one.update(batch, StepResult(outcomes), 0.0)
    assert delta.error.message == message
    assert not one.has_work()
    one.check_invariants()


def test_a_reset_cache_is_cold_again() -> None:
    one = scheduler()
    one.add(request("a", 9, max_tokens=1), now=0.0)
    step(one)
    assert one.load().cached_blocks == 2
    one.reset_prefix_cache()
    assert (one.load().cached_blocks, one.load().free_blocks) == (0, 32)
    one.add(request("a", 9, max_tokens=1), now=0.0)
    assert step(one)[1][0].cached_tokens == 0


def test_the_books_notice_a_sequence_that_nobody_owns() -> None:
    one = scheduler()
    one.add(request("a", 9), now=0.0)
    one._roster._requests.clear()
    with pytest.raises(AssertionError, match="disagree"):
        one.check_invariants()
