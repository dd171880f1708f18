"""What the engine notes of its steps while it is asked to, and that it notes nothing otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.engine.step_recorder import StepRecorder, Transfer
from atomesh.errors import InvalidRequestError
from atomesh.protocol import step_trace
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.step_trace import TraceLimits
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.scripted_engine import ScriptedEngine, scripted_request

CONFIG = SchedulerConfig(
    max_num_seqs=2, max_num_batched_tokens=32, max_model_len=256, block_size=16, num_blocks=32
)


def engine_with_slow_steps() -> ScriptedEngine:
    """Each step's arithmetic takes a quarter of a second by the engine's clock."""
    scripted = ScriptedEngine(CONFIG)
    execute = scripted.executor.execute

    def slowly(batch):
        scripted.clock.advance(0.25)
        return execute(batch)

    scripted.executor.execute = slowly
    return scripted


def test_steps_are_noted_with_their_parts_and_their_batch() -> None:
    scripted = engine_with_slow_steps()
    recorder = scripted.engine.recorder
    scripted.clock.advance(5.0)
    recorder.start(TraceLimits())
    scripted.clock.advance(1.0)
    for start, name in enumerate("abc"):
        prompt = list(range(start * 100, start * 100 + 40))
        scripted.engine.add(scripted_request(name, prompt, SamplingSpec(seed=0, max_tokens=2)))
    scripted.step()
    scripted.step()
    scripted.clock.advance(1.0)
    trace = recorder.stop()

    assert trace is not None
    assert (trace.began_ago_s, trace.is_cut) == (2.5, False)
    first, second = trace.steps
    assert (first.began_s, first.scheduled_s, first.executed_s, first.ended_s) == (1.0, 1.0, 1.25, 1.25)
    assert (second.began_s, second.ended_s) == (1.25, 1.5)
    assert (first.prefills, first.prefill_tokens, first.decodes) == (1, 32, 0)
    assert (first.running, first.waiting) == (1, 2)
    # the rest of the first prompt, and as much of the second as the budget of 32 tokens leaves
    assert (second.prefills, second.prefill_tokens, second.running, second.waiting) == (2, 32, 2, 1)


def test_nothing_is_noted_unless_asked_and_what_was_is_told_once() -> None:
    scripted = engine_with_slow_steps()
    recorder = scripted.engine.recorder
    scripted.engine.add(scripted_request("a", [1]))
    scripted.step()
    assert recorder.stop() is None
    recorder.start(TraceLimits())
    scripted.step()
    trace = recorder.stop()
    assert trace is not None
    assert [step.decodes for step in trace.steps] == [1]
    scripted.run()
    assert recorder.stop() is None
    assert not recorder.is_on


def test_it_ends_by_itself_after_so_many_steps() -> None:
    scripted = engine_with_slow_steps()
    recorder = scripted.engine.recorder
    recorder.start(TraceLimits(steps=3))
    scripted.engine.add(scripted_request("a", [1]))
    scripted.run()
    assert not recorder.is_on
    trace = recorder.stop()
    assert trace is not None
    assert (len(trace.steps), trace.is_cut) == (3, True)


def test_it_ends_by_itself_after_so_many_seconds() -> None:
    scripted = engine_with_slow_steps()
    recorder = scripted.engine.recorder
    recorder.start(TraceLimits(seconds=0.5))
    scripted.engine.add(scripted_request("a", [1]))
    scripted.run()  # steps begin at 0, 0.25, 0.5, 0.75 …
    trace = recorder.stop()
    assert trace is not None
    assert [step.began_s for step in trace.steps] == [0.0, 0.25, 0.5]
    assert trace.is_cut


def test_a_recording_without_a_step_is_over_in_time_too() -> None:
    clock = ManualClock()
    recorder = StepRecorder(clock)
    recorder.start(TraceLimits(seconds=1.0))
    clock.advance(1.5)
    trace = recorder.stop()
    assert trace is not None
    assert (trace.steps, trace.is_cut, trace.began_ago_s) == ([], True, 1.5)


def test_transfers_are_noted_up_to_a_number_and_the_rest_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomesh.engine.step_recorder.MAX_TRACE_TRANSFERS", 2)
    clock = ManualClock()
    recorder = StepRecorder(clock)
    recorder.saw_transfer(Transfer("push", "p", 0.5, 3, 300))
    recorder.start(TraceLimits())
    clock.advance(1.0)
    for seconds in (0.25, 4.0, 0.5):
        recorder.saw_transfer(Transfer("receive", "p", seconds, 3, 300))
    trace = recorder.stop()
    assert trace is not None
    # one that began before the recording did is shown from there
    assert [(one.began_s, one.ended_s) for one in trace.transfers] == [(0.75, 1.0), (0.0, 1.0)]
    assert trace.transfers_left_out == 1


@given(seconds=st.floats(), steps=st.integers())
def test_limits_are_bounded(seconds: float, steps: int) -> None:
    limits = TraceLimits(seconds=seconds, steps=steps)
    if 0 < seconds <= step_trace.MAX_TRACE_S and 1 <= steps <= step_trace.MAX_TRACE_STEPS:
        limits.check()
    else:
        with pytest.raises(InvalidRequestError, match="it must lie in"):
            limits.check()
