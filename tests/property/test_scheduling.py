"""What scheduling may cost, and what it may never cost: tokens, fairness, blocks."""

import logging
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.errors import InvalidRequestError
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import ScriptedEngine, scripted_request

BLOCK = 4


@pytest.fixture(scope="module", autouse=True)
def no_tracebacks_in_the_log() -> Iterator[None]:
    """Formatting one compiles source lines, which the audit of every test would take for code from data."""
    logger = logging.getLogger("atomesh.engine.engine")
    logger.disabled = True
    yield
    logger.disabled = False


def config(**overrides: object) -> SchedulerConfig:
    sizes = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 32,
        "max_model_len": 128,
        "block_size": BLOCK,
        "num_blocks": 64,
    }
    return SchedulerConfig(**{**sizes, **overrides})


def spec(max_tokens: int) -> SamplingSpec:
    return SamplingSpec(seed=0, max_tokens=max_tokens)


def assert_all_answered(one: ScriptedEngine, requests: list[GenerationRequest]) -> None:
    for request in requests:
        for choice in range(request.n):
            key = (request.request_id, choice)
            assert one.answers.tokens[key] == one.solo_answer(request, choice)
            assert one.answers.last[key].finish_reason is not None
    load = one.engine.load()
    assert load.free_blocks + load.cached_blocks == load.total_blocks


heads = st.sampled_from([0, 3, 4, 9, 16, 31])
tails = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(prompts=st.lists(st.tuples(heads, tails), min_size=1, max_size=8), budget=st.sampled_from([1, 7, 32]))
def test_cached_answers_equal_uncached_ones(prompts: list[tuple[int, list[int]]], budget: int) -> None:
    requests = [
        scripted_request(str(i), [9] * head + tail, spec(6)) for i, (head, tail) in enumerate(prompts)
    ]
    for enable in (True, False):
        one = ScriptedEngine(config(enable_prefix_cache=enable, max_num_batched_tokens=budget))
        for request in requests:
            one.engine.add(request)
            one.step()
        one.run()
        for request in requests:
            one.engine.add(scripted_request(f"again {request.request_id}", request.prompt_token_ids, spec(6)))
        one.run()
        assert_all_answered(one, requests)
        for request in requests:
            again = one.answers.first[f"again {request.request_id}"]
            whole_blocks = (len(request.prompt_token_ids) - 1) // BLOCK * BLOCK
            assert again.cached_tokens == (whole_blocks if enable else 0)
            assert (
                one.answers.tokens[f"again {request.request_id}", 0]
                == one.answers.tokens[request.request_id, 0]
            )


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=8),
    num_blocks=st.integers(20, 30),
    cache=st.booleans(),
)
def test_preempted_requests_give_the_same_tokens(
    lengths: list[tuple[int, int]], num_blocks: int, cache: bool
) -> None:
    one = ScriptedEngine(config(num_blocks=num_blocks, enable_prefix_cache=cache))
    requests = [
        scripted_request(str(i), [i] * prompt_len, spec(max_tokens), n=1 + i % 2)
        for i, (prompt_len, max_tokens) in enumerate(lengths)
    ]
    for request in requests:
        one.engine.add(request)
    one.run(max_steps=5000)
    assert_all_answered(one, requests)


def test_the_preemption_property_is_not_vacuous() -> None:
    one = ScriptedEngine(config(num_blocks=20))
    for i in range(6):
        one.engine.add(scripted_request(str(i), [i] * 10, spec(40), n=2))
    one.run(max_steps=5000)
    assert one.engine.load().preemptions >= 6


@given(
    lengths=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 20)), min_size=1, max_size=12),
    seats=st.integers(1, 8),
    budget=st.integers(1, 40),
)
def test_the_token_budget_and_the_seats_are_never_exceeded(
    lengths: list[tuple[int, int]], seats: int, budget: int
) -> None:
    one = ScriptedEngine(config(max_num_seqs=seats, max_num_batched_tokens=budget))
    for i, (prompt_len, max_tokens) in enumerate(lengths):
        one.engine.add(scripted_request(str(i), [i] * prompt_len, spec(max_tokens), n=1 + i % 3))
    one.run()
    for batch in one.executor.batches:
        assert sum(len(entry.token_ids) for entry in batch.sequences) <= budget
        assert len(batch.sequences) <= seats
        assert len({entry.sequence_id for entry in batch.sequences}) == len(batch.sequences)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_an_unlucky_request_is_not_starved_by_a_stream_of_better_ones(policy: str) -> None:
    """Newer requests of higher priority keep coming; at most 1,024 of them go before the old one."""
    one = ScriptedEngine(config(policy=policy, max_num_seqs=2, num_blocks=33))
    for i in range(3):
        one.engine.add(scripted_request(f"early {i}", [i] * 8, spec(4)))
    old = scripted_request("old", [7] * 100, spec(20), priority=1)
    one.engine.add(old)
    for i in range(6000):
        if one.engine.load().waiting < 50:
            one.engine.add(scripted_request(f"new {i}", [i % 900, 1], spec(3), priority=0))
        one.step()
        if ("old", 0) in one.answers.last and one.answers.last["old", 0].finish_reason:
            break
    assert one.answers.tokens["old", 0] == one.solo_answer(old)
    assert one.engine.load().waiting > 0


def test_a_running_stream_gets_a_token_every_step_however_long_the_prompts_beside_it() -> None:
    one = ScriptedEngine(config(max_num_batched_tokens=8))
    one.engine.add(scripted_request("stream", [1, 2, 3], spec(40)))
    one.step()
    for i in range(8):
        one.engine.add(scripted_request(str(i), [i] * 100, spec(1)))
    for _ in range(39):
        assert [delta.token_ids for delta in one.step() if delta.request_id == "stream"]


def test_pools_for_two_serve_fifty_long_requests() -> None:
    """FAULTS.md C6."""
    one = ScriptedEngine(config(num_blocks=2 * 128 // BLOCK, max_num_seqs=64))
    requests = [scripted_request(str(i), [i] * 60 + [1] * (i % 7), spec(60)) for i in range(50)]
    for request in requests:
        one.engine.add(request)
    one.run(max_steps=20_000)
    assert_all_answered(one, requests)


def test_what_fits_by_a_token_runs_and_one_token_more_is_refused_and_harms_nobody() -> None:
    """FAULTS.md C5."""
    one = ScriptedEngine(config(num_blocks=16))
    other = scripted_request("other", [5] * 20, spec(20))
    fits = scripted_request("fits", [6] * 30, spec(35))
    one.engine.add(other)
    one.step()
    one.engine.add(fits)
    with pytest.raises(InvalidRequestError, match="room for 65 tokens in the KV cache, which holds 64"):
        one.engine.add(scripted_request("too long", [6] * 30, spec(36)))
    one.run(max_steps=1000)
    assert_all_answered(one, [other, fits])
    assert len(one.answers.tokens["fits", 0]) == 35


def test_many_choices_of_a_request_that_fills_the_pool_all_finish() -> None:
    one = ScriptedEngine(config(num_blocks=16))
    request = scripted_request("a", [6] * 30, spec(35), n=7)
    one.engine.add(request)
    one.run(max_steps=5000)
    assert_all_answered(one, [request])
    assert sum(len(b.sequences[0].token_ids) for b in one.executor.batches[:1]) == 30


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 30))
def test_branches_share_their_prompt_and_an_abort_midway_frees_all(seed: int, cut: int) -> None:
    """FAULTS.md B3."""
    one = ScriptedEngine(config())
    one.engine.add(scripted_request("a", [seed % 900] * 30, spec(20), n=4))
    for _ in range(cut):
        one.step()
    load = one.engine.load()
    held = load.total_blocks - load.free_blocks - load.cached_blocks
    if cut in range(2, 20):
        assert held == 7 + 4 * ((30 + cut - 1 + BLOCK - 1) // BLOCK - 7)
    one.engine.abort("a")
    one.engine.check_invariants()
    load = one.engine.load()
    assert load.free_blocks + load.cached_blocks == load.total_blocks
    assert load.prompt_tokens == (30 if cut else 0)


def test_five_hundred_random_aborts_leave_no_block_behind() -> None:
    rng = random.Random(5)
    one = ScriptedEngine(config(num_blocks=48))
    alive: list[str] = []
    for i in range(500):
        prompt = [rng.randrange(3)] * rng.randrange(1, 60)
        one.engine.add(scripted_request(str(i), prompt, spec(rng.randrange(1, 50)), n=rng.choice([1, 1, 3])))
        alive.append(str(i))
        for _ in range(rng.randrange(3)):
            one.step()
        one.engine.abort(alive.pop(rng.randrange(len(alive))))
        one.engine.check_invariants()
    assert not one.engine.has_work()
    load = one.engine.load()
    assert (load.running, load.waiting) == (0, 0)
    assert load.free_blocks + load.cached_blocks == 48


@given(prompts=st.lists(st.lists(st.integers(0, 1), min_size=5, max_size=20), min_size=2, max_size=6))
def test_a_prefix_is_never_shared_across_salts(prompts: list[list[int]]) -> None:
    """FAULTS.md A9."""
    one = ScriptedEngine(config())
    for i, prompt in enumerate(prompts):
        for name in (f"first {i}", f"second {i}"):
            one.engine.add(scripted_request(name, prompt, spec(2), cache_salt=f"tenant {i}"))
            one.run()
        assert one.answers.first[f"first {i}"].cached_tokens == 0
        assert one.answers.first[f"second {i}"].cached_tokens == (len(prompt) - 1) // BLOCK * BLOCK


def test_a_whole_batch_that_fails_ends_each_request_and_the_engine_goes_on() -> None:
    """FAULTS.md F5, at its worst."""
    is_broken = True
    one = ScriptedEngine(config(), fails=lambda _: is_broken)
    for i in range(5):
        one.engine.add(scripted_request(str(i), [i] * 5, spec(4), n=2))
    one.run(max_steps=5)
    assert [one.answers.last[str(i), 0].finish_reason for i in range(5)] == ["error"] * 5
    is_broken = False
    after = scripted_request("after", [0] * 5, spec(4))
    one.engine.add(after)
    one.run()
    assert_all_answered(one, [after])


@given(data=st.data())
def test_a_batch_that_fails_now_and_then_changes_nobody_elses_answer(data: st.DataObject) -> None:
    """A fault half-way through a batch leaves blocks written and copies made; the second run is right."""
    poisoned = data.draw(st.sets(st.tuples(st.integers(1, 25), st.integers(0, 3)), max_size=4))
    one = ScriptedEngine(
        config(num_blocks=14, max_num_seqs=6),
        fails=lambda entry: (entry.sequence_id, len(entry.output_token_ids)) in poisoned,
    )
    requests = [
        scripted_request(str(i), [i % 2] * (5 + 3 * i), spec(8), n=1 + i % 3, priority=i) for i in range(5)
    ]
    for request in requests:
        one.engine.add(request)
    one.run(max_steps=2000)
    load = one.engine.load()
    assert load.free_blocks + load.cached_blocks == 14
    for request in requests:
        ends = [one.answers.last.get((request.request_id, choice)) for choice in range(request.n)]
        if not any(end is not None and end.finish_reason == "error" for end in ends):
            assert_all_answered(one, [request])
