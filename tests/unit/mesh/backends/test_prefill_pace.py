import pytest

from atomesh.mesh.backends.prefill_pace import PrefillPace
from atomesh.mesh.placement.cost_model import CostModel
from atomesh.protocol.step_sample import StepSample


def test_a_prompt_alone_took_what_lies_between_its_sending_and_its_first_token() -> None:
    pace = PrefillPace()
    prompt = pace.sent(100, now=5.0)
    pace.began(prompt, now=5.5)
    pace.began(prompt, now=9.0)
    assert pace.counted(prompt, cached_tokens=40) == StepSample(0.5, 60, 100**2 - 40**2, 0, 0)


def test_a_prompt_that_waited_for_another_took_the_time_after_it() -> None:
    pace = PrefillPace()
    first, second = pace.sent(100, now=0.0), pace.sent(50, now=0.1)
    pace.began(first, now=1.0)
    pace.began(second, now=1.25)
    assert pace.counted(second, 0) == StepSample(0.25, 50, 2500, 0, 0)
    assert pace.counted(first, 0) == StepSample(1.0, 100, 10_000, 0, 0)


def test_prompts_of_one_step_are_one_sample() -> None:
    pace = PrefillPace()
    first, second, third = (pace.sent(100, now=0.0) for _ in range(3))
    for prompt, now in ((first, 1.0), (second, 1.0), (third, 1.5)):
        pace.began(prompt, now)
    assert pace.counted(second, 0) is None
    assert pace.counted(third, 99) == StepSample(0.5, 101, 2 * 100**2 - 99**2, 0, 0)
    assert pace.counted(first, 0) == StepSample(1.0, 100, 10_000, 0, 0)


@pytest.mark.parametrize(("told", "counted"), [(-5, 10), (10, 1), (10**15, 1)])
def test_no_more_is_cached_than_a_prompt_has_but_its_last_token(told: int, counted: int) -> None:
    pace = PrefillPace()
    prompt = pace.sent(10, now=0.0)
    pace.began(prompt, now=1.0)
    sample = pace.counted(prompt, told)
    assert sample is not None
    assert sample.prefill_tokens == counted


def test_of_a_prompt_that_has_not_begun_there_is_nothing_to_learn() -> None:
    pace = PrefillPace()
    assert pace.counted(pace.sent(10, now=0.0), 0) is None


def test_the_cost_model_comes_to_the_engine_s_speed() -> None:
    pace, costs, now = PrefillPace(), CostModel(), 0.0
    costs.introduce("e", "m")
    for number in range(64):
        tokens = 200 + 37 * number % 600
        prompt = pace.sent(tokens, now)
        now += 2e-3 + 1e-4 * tokens
        pace.began(prompt, now)
        sample = pace.counted(prompt, 0)
        assert sample is not None
        costs.observe_step("e", sample)
    assert costs.view().step("e").prefill_s(500, 0) == pytest.approx(52e-3, rel=0.05)
    assert costs.view().step("e").prefill_s(500, 400) == pytest.approx(12e-3, rel=0.3)
