import pytest

from atomesh.mesh.placement.costs import PRIOR_LINK, PRIOR_STEP, Costs, LinkCosts, StepCosts, roofline_step
from atomesh.protocol.roofline import Roofline

STEP = StepCosts(fixed_s=1.0, token_s=0.1, quadratic_s=0.001, context_s=0.01, sequence_s=0.5, chunk_tokens=10)


def test_a_prompt_costs_its_uncached_tokens_their_attention_and_a_fixed_part_for_each_chunk() -> None:
    assert STEP.prefill_s(20, 0) == pytest.approx(2 * 1.0 + 20 * 0.1 + 400 * 0.001)
    assert STEP.prefill_s(20, 15) == pytest.approx(1.0 + 5 * 0.1 + (400 - 225) * 0.001)
    assert STEP.prefill_s(21, 0) == pytest.approx(3 * 1.0 + 21 * 0.1 + 441 * 0.001)
    assert STEP.prefill_s(20, 20) == 0.0


def test_chunks_cost_what_the_steps_that_they_are_cost_together() -> None:
    steps = [STEP.prefill_s(10, 0), STEP.prefill_s(20, 10), STEP.prefill_s(25, 20)]
    assert STEP.prefill_s(25, 0) == pytest.approx(sum(steps))


def test_a_decode_step_costs_its_context_and_its_sequences() -> None:
    assert STEP.decode_s(100, 4) == 1.0 + 1.0 + 2.0
    assert STEP.decoding_s(100, 4) == 3.0


def test_a_link_costs_latency_and_bytes() -> None:
    assert LinkCosts(0.5, 0.001).transfer_s(100) == 0.6


def test_the_unknown_costs_what_the_default_says() -> None:
    costs = Costs({"a": STEP}, {("a", "b"): LinkCosts(1.0, 1.0)})
    assert costs.step("a") is STEP
    assert costs.step("b") is PRIOR_STEP
    assert costs.link("b", "a") is PRIOR_LINK


@pytest.mark.parametrize(
    ("speed", "is_believed"), [(1e12, True), (5e-300, False), (1e308, False), (1.0, False)], ids=str
)
def test_a_roofline_is_believed_only_where_it_is_plausible(speed: float, *, is_believed: bool) -> None:
    bounds = Roofline(
        weight_bytes=10**9,
        kv_bytes=10**4,
        token_flops=10**9,
        pair_flops=10**4,
        sequence_flops=10**8,
        flops_per_s=speed,
        bytes_per_s=speed,
    )
    step = roofline_step(bounds)
    if is_believed:
        assert step is not None
        assert step.row == pytest.approx((1e-3, 1e-3, 5e-9, 1e-8, 1e-4))
    else:
        assert step is None
