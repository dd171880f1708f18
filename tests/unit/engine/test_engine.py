import logging
from collections.abc import Callable, Iterable

import pytest

from atomesh.engine.core.batch import ScheduledBatch, ScheduledSequence, StepResult
from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.engine.engine import FAILURE, Engine
from atomesh.errors import InvalidRequestError
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.generation import TokenLogprobs
from atomesh.protocol.kv_events import BlocksStored, KVEvent, KVEvents
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.step_sample import StepSample
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.scripted_engine import VOCAB_SIZE, Answers, ScriptedEngine, describe, scripted_request
from atomesh.testing.scripted_executor import (
    ScriptedExecutor,
    scripted_logprobs,
    token_from_history,
    token_from_list,
)

CONFIG = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=16, max_model_len=64, block_size=4, num_blocks=32
)
POISON = 666


@pytest.fixture(autouse=True)
def no_tracebacks_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Formatting one compiles source lines, which the audit of every test would take for code from data."""
    caplog.set_level(logging.CRITICAL, logger="atomesh.engine.engine")


def is_poisoned(sequence: ScheduledSequence) -> bool:
    return POISON in sequence.prompt_token_ids


def test_requests_are_answered_as_scripted() -> None:
    one = ScriptedEngine(CONFIG, token_from_list(3, [11, 12, 13]))
    one.engine.add(scripted_request("a", [1, 2, 3], SamplingSpec(seed=0, max_tokens=4)))
    assert one.engine.has_work()
    assert one.run() == 4
    assert one.answers.tokens == {("a", 0): [11, 12, 13, 11]}
    assert one.answers.last["a", 0].finish_reason == "length"
    assert not one.engine.has_work()


def test_an_idle_step_does_nothing() -> None:
    one = ScriptedEngine(CONFIG)
    assert one.step() == []
    assert one.executor.batches == []


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_a_token_outside_the_vocabulary_is_refused(token_id: int) -> None:
    one = ScriptedEngine(CONFIG)
    with pytest.raises(InvalidRequestError, match=f"token id {token_id} is not in the vocabulary"):
        one.engine.add(scripted_request("a", [1, token_id, 2]))
    assert not one.engine.has_work()


def test_a_stop_token_ends_the_answer_and_belongs_to_it() -> None:
    one = ScriptedEngine(CONFIG, token_from_list(1, [11, 12, 13]))
    one.engine.add(scripted_request("eos", [1], SamplingSpec(seed=0, max_tokens=9, eos_token_ids=(12,))))
    one.engine.add(scripted_request("stop", [1], SamplingSpec(seed=0, max_tokens=9, stop_token_ids=(13,))))
    one.run()
    assert one.answers.tokens == {("eos", 0): [11, 12], ("stop", 0): [11, 12, 13]}
    assert [one.answers.last[name, 0].finish_reason for name in ("eos", "stop")] == ["stop", "stop"]
    assert one.answers.last["eos", 0].stop_token_id is None
    assert one.answers.last["stop", 0].stop_token_id == 13


def test_one_bad_request_is_evicted_and_its_neighbours_get_their_own_answers() -> None:
    one = ScriptedEngine(CONFIG, fails=is_poisoned)
    good = [scripted_request(f"good {i}", [i, i + 1, i + 2], n=2) for i in range(3)]
    for request in (good[0], scripted_request("bad", [1, POISON, 3]), *good[1:]):
        one.engine.add(request)
    one.run()
    for request in good:
        for choice in range(2):
            assert one.answers.tokens[request.request_id, choice] == one.solo_answer(request, choice)
    bad = one.answers.last["bad", 0]
    assert (bad.finish_reason, bad.token_ids) == ("error", [])
    assert (bad.error.kind, bad.error.message) == ("EngineError", FAILURE)
    assert "666" not in bad.error.message
    load = one.engine.load()
    assert load.free_blocks + load.cached_blocks == 32


def test_a_bad_branch_takes_its_copies_along_and_the_others_still_get_theirs() -> None:
    one = ScriptedEngine(CONFIG, fails=lambda sequence: is_poisoned(sequence) and sequence.choices == (0,))
    good = scripted_request("good", [1, 2, 3, 4, 5, 6], n=3)
    one.engine.add(scripted_request("bad", [1, POISON, 3], n=3))
    one.engine.add(good)
    one.run()
    assert one.answers.last["bad", 0].finish_reason == "error"
    assert [one.answers.tokens["good", choice] for choice in range(3)] == [
        one.solo_answer(good, choice) for choice in range(3)
    ]
    assert ("bad", 1) in one.answers.tokens
    assert len(one.answers.tokens["bad", 1]) == 1


class OnlyAlone(ScriptedExecutor):
    """Fails before it has touched a block whenever it is given more than one sequence."""

    def execute(self, batch: ScheduledBatch) -> StepResult:
        if len(batch.sequences) > 1:
            raise MemoryError
        return super().execute(batch)


def test_an_executor_that_fails_before_its_copies_gets_them_with_the_first_that_runs_alone() -> None:
    script = token_from_history(VOCAB_SIZE)
    executor = OnlyAlone(script, CONFIG.num_blocks, CONFIG.block_size)
    scheduler = Scheduler(CONFIG, BlockHasher(b"", "scripted", CONFIG.block_size))
    engine = Engine(scheduler, executor, ManualClock(), describe(CONFIG))
    engine.add(scripted_request("a", [1, 2, 3, 4, 5, 6], SamplingSpec(seed=0, max_tokens=3), n=3))
    answers = Answers()
    while engine.has_work():
        answers.take(engine.step())
        engine.check_invariants()
    for choice in range(3):
        history = [1, 2, 3, 4, 5, 6]
        for token_id in answers.tokens["a", choice]:
            assert token_id == script(history, choice)
            history.append(token_id)
        assert len(history) == 9


def test_a_bad_request_alone_is_run_once() -> None:
    one = ScriptedEngine(CONFIG, fails=is_poisoned)
    one.engine.add(scripted_request("bad", [POISON]))
    one.run()
    assert len(one.executor.batches) == 1
    assert one.answers.last["bad", 0].finish_reason == "error"
    one.engine.add(scripted_request("after", [1]))
    one.run()
    assert len(one.answers.tokens["after", 0]) == 8


def test_prompt_logprobs_are_complete_whatever_the_chunks_and_come_once() -> None:
    one = ScriptedEngine(CONFIG)
    prompt = list(range(40))
    spec = SamplingSpec(seed=0, max_tokens=2, prompt_logprobs=1)
    for name in ("cold", "warm"):
        one.engine.add(scripted_request(name, prompt, spec, n=2))
        one.run()
        first = one.answers.first[name]
        assert first.prompt_logprobs == [None, *(scripted_logprobs(token, 1) for token in prompt[1:])]
        assert first.cached_tokens == 0
        assert one.answers.last[name, 0].prompt_logprobs is None
    load = one.engine.load()
    assert (load.prefix_cache_queries, load.prefix_cache_hits) == (0, 0)


def test_prompt_logprobs_survive_preemption() -> None:
    one = ScriptedEngine(
        SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=6, max_model_len=64, block_size=4, num_blocks=10
        )
    )
    prompt = list(range(100, 130))
    one.engine.add(scripted_request("old", [1, 2, 3], SamplingSpec(seed=0, max_tokens=30)))
    one.step()
    spec = SamplingSpec(seed=0, max_tokens=3, prompt_logprobs=0)
    one.engine.add(scripted_request("new", prompt, spec))
    one.run()
    assert one.engine.load().preemptions > 0
    assert one.answers.first["new"].prompt_logprobs == [
        None,
        *(TokenLogprobs(token, -0.5, 1, []) for token in prompt[1:]),
    ]


def test_an_echo_delivers_the_prompt_logprobs_without_a_token() -> None:
    one = ScriptedEngine(CONFIG)
    one.engine.add(scripted_request("echo", [5, 6, 7], SamplingSpec(seed=0, max_tokens=0, prompt_logprobs=0)))
    one.run()
    delta = one.answers.first["echo"]
    assert delta.prompt_logprobs == [None, scripted_logprobs(6, 0), scripted_logprobs(7, 0)]
    assert (delta.token_ids, delta.finish_reason) == ([], "length")


def test_output_logprobs_go_with_their_token() -> None:
    one = ScriptedEngine(CONFIG, token_from_list(1, [11]))
    one.engine.add(scripted_request("a", [1], SamplingSpec(seed=0, max_tokens=1, logprobs=2)))
    (delta,) = one.step()
    assert delta.logprobs == [TokenLogprobs(11, -0.5, 1, [(11, -0.5), (12, -1.5)])]


def test_close_closes_the_executor() -> None:
    one = ScriptedEngine(CONFIG)
    one.engine.close()
    assert one.executor.is_closed


class NotingSink:
    """Notes the events it is told, and what it is said to be held after each."""

    def __init__(self) -> None:
        self.told: list[KVEvent] = []
        self.held: set[bytes] = set()
        self.is_closed = False

    def publish(self, batch: KVEvents, held: Callable[[], Iterable[bytes]]) -> None:
        self.told += batch.events
        self.held = set(held())

    def close(self) -> None:
        self.is_closed = True


def test_whoever_wants_the_kv_events_gets_what_the_gateways_get() -> None:
    scripted, sink = ScriptedEngine(CONFIG), NotingSink()
    scripted.engine.publish_to(sink)
    scripted.engine.add(scripted_request("r", list(range(1, 40))))
    told: list[KVEvent] = []
    while scripted.engine.has_work():
        scripted.step()
        told += scripted.engine.take_news().kv_events.events

    assert told
    assert sink.told == told
    assert sink.held == {one for event in told if isinstance(event, BlocksStored) for one in event.hashes}
    scripted.engine.close()
    assert sink.is_closed


def test_steps_are_measured_but_not_those_that_failed() -> None:
    one = ScriptedEngine(CONFIG, fails=is_poisoned)
    one.engine.add(scripted_request("a", list(range(1, 24)), SamplingSpec(seed=0, max_tokens=2)))
    samples = []
    for _ in range(3):
        one.step()
        samples.append(one.engine.take_news().sample)
    one.engine.add(scripted_request("b", [POISON]))
    one.step()

    assert samples == [
        StepSample(0.0, 16, 16**2, 0, 0),
        StepSample(0.0, 7, 23**2 - 16**2, 0, 0),
        StepSample(0.0, 0, 0, 24, 1),
    ]
    assert one.engine.take_news().sample is None
    one.step()
    assert one.engine.take_news().sample is None
