"""What steps cost."""

import pytest

from atomesh.engine.core.batch import ScheduledBatch, ScheduledSequence
from atomesh.errors import ConfigurationError
from atomesh.planner.simulator.latency_model import DEFAULT_COST, find_costs, work_of
from atomesh.protocol.sampling import SamplingSpec


def chunk(start: int, end: int) -> ScheduledSequence:
    spec = SamplingSpec(seed=0, max_tokens=1)
    return ScheduledSequence(1, spec, range(start, end), start, [], (), [], [])


def test_the_default_is_a_70b_llama_on_eight_h100_at_half_their_rate() -> None:
    costs = find_costs(DEFAULT_COST)

    assert costs.fixed_s == 0.010
    assert costs.token_s == pytest.approx(2 * 70.6e9 / 3957.6e12)
    assert costs.quadratic_s == pytest.approx(2 * 80 * 8192 / 3957.6e12)
    # 12,035 tokens, the trace's mean: 0.43 s of products with weights and 0.05 s of attention.
    assert costs.prefill_s(12_035, 0) == pytest.approx(0.010 + 0.4294 + 0.0480, abs=5e-4)


def test_chunks_sum_to_their_prompts() -> None:
    steps = [ScheduledBatch((chunk(8, 16),)), ScheduledBatch((chunk(16, 20), chunk(0, 3)))]

    assert [work_of(step) for step in steps] == [(8, 16**2 - 8**2), (7, 20**2 - 16**2 + 3**2)]


def test_an_unknown_cost_names_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match="'abacus' is not known; choose from llama-70b@8xh100-50%"):
        find_costs("abacus")
