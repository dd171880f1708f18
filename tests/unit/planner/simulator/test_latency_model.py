"""What steps cost."""

import pytest

from atomesh.engine.core.batch import ScheduledBatch, ScheduledSequence
from atomesh.engine.core.step_measure import measure
from atomesh.errors import ConfigurationError
from atomesh.mesh.placement.costs import StepCosts
from atomesh.planner.simulator.latency_model import DEFAULT_COST, find_costs, step_seconds
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
    assert costs.tokens_s(12_035, 0) == pytest.approx(0.4294 + 0.0480, abs=5e-4)


def test_a_step_costs_what_its_sample_counts() -> None:
    costs = StepCosts(fixed_s=1.0, token_s=0.5, quadratic_s=0.25, context_s=0.125, sequence_s=2.0)
    batch = ScheduledBatch((chunk(16, 20), chunk(0, 3), chunk(7, 8)))

    assert step_seconds(costs, measure(batch, 0.0)) == 1.0 + 0.5 * 7 + 0.25 * (144 + 9) + 0.125 * 8 + 2.0


def test_a_last_token_alone_costs_nearly_what_it_would_in_a_chunk() -> None:
    costs = find_costs(DEFAULT_COST)

    alone = step_seconds(costs, measure(ScheduledBatch((chunk(1000, 1001),)), 0.0))

    assert alone == pytest.approx(costs.fixed_s + costs.tokens_s(1001, 1000), rel=1e-6)


def test_an_unknown_cost_names_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match="'abacus' is not known; choose from llama-70b@8xh100-50%"):
        find_costs("abacus")
