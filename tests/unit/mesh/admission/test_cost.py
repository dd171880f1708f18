from dataclasses import replace

import pytest
from msgspec.structs import replace as replaced

from atomesh.mesh.admission.cost import KV_POOL, PRIOR_TARIFF, CostMeter, Tariff, tariff_of
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.costs import PRIOR_COSTS, Costs, StepCosts
from atomesh.protocol.generation import TokenDelta
from atomesh.protocol.worker import LoadReport
from atomesh.testing.mesh_snapshots import worker_description, worker_snapshot

TARIFF = Tariff(token_s=1.0, quadratic_s=0.01, output_token_s=4.0, context_s=0.1, kv_token_s=0.5)
FAST = StepCosts(8e-3, 1e-3, 1e-6, 1e-7, 2e-3, chunk_tokens=100)
SLOW = StepCosts(16e-3, 3e-3, 3e-6, 3e-7, 6e-3, chunk_tokens=400)


def delta(tokens: int, cached: int | None = None, choice: int = 0) -> TokenDelta:
    return TokenDelta(request_id="r", choice=choice, token_ids=[1] * tokens, cached_tokens=cached)


def test_a_request_costs_what_was_computed_and_what_was_held() -> None:
    meter = CostMeter(100, now=10.0, tariff=TARIFF)
    total = meter.start()
    assert total == 100 + 0.01 * 100**2
    total += meter.take([delta(1, cached=64)], 11.0)
    total += meter.take([delta(2)], 12.0)
    total += meter.end(14.0)
    computed = (100 - 64) + 0.01 * (100**2 - 64**2)
    generated = 4.0 * 3 + 0.1 * (101 + 102 + 103)
    held = 0.5 * (100 * 1 + 101 * 1 + 103 * 2)
    assert total == pytest.approx(computed + generated + held)


def test_choices_share_the_prompt_and_each_pays_for_its_tokens() -> None:
    meter = CostMeter(10, now=0.0, tariff=replace(TARIFF, kv_token_s=0.0))
    total = meter.start() + meter.take([delta(1, cached=0), delta(1, choice=1)], 5.0) + meter.end(9.0)
    assert total == pytest.approx(10 + 1 + 2 * (4.0 + 0.1 * 11))


def test_prices_are_what_steps_were_measured_to_take() -> None:
    """A prompt token fills a hundredth of a step, an answer one of three places in it."""
    worker = worker_snapshot("w", decoding=3)
    tariff = tariff_of([worker], Costs(steps={"w-life": FAST}))
    assert tariff.token_s == pytest.approx(1e-3 + 8e-5)
    assert tariff.output_token_s == pytest.approx(2e-3 + 8e-3 / 3)
    assert (tariff.quadratic_s, tariff.context_s) == (1e-6, 1e-7)
    assert tariff.kv_token_s == KV_POOL / worker.description.model.kv_tokens


def test_prompts_are_priced_where_they_are_computed_and_answers_where_they_decode() -> None:
    roles = [worker_snapshot("p", "prefill", load=LoadReport(running=50)), worker_snapshot("d", "decode")]
    tariff = tariff_of(roles, Costs(steps={"p-life": FAST, "d-life": SLOW}))
    assert tariff.token_s == pytest.approx(1e-3 + 8e-5)
    assert tariff.output_token_s == pytest.approx(6e-3 + 16e-3)  # alone in its step


def test_of_several_workers_the_mean_is_charged() -> None:
    pair = [worker_snapshot("a"), worker_snapshot("b", load=LoadReport(running=2))]
    tariff = tariff_of(pair, Costs(steps={"a-life": FAST, "b-life": SLOW}))
    assert tariff.token_s == pytest.approx((1e-3 + 8e-5 + 3e-3 + 4e-5) / 2)
    assert tariff.output_token_s == pytest.approx((2e-3 + 8e-3 + 6e-3 + 8e-3) / 2)


def test_workers_against_their_roles_have_prices_too() -> None:
    tariff = tariff_of([worker_snapshot("d", "decode")], Costs(steps={"d-life": FAST}))
    assert tariff.token_s == pytest.approx(1e-3 + 8e-5)


def test_a_pool_of_unknown_size_costs_nothing() -> None:
    told = worker_description("w")
    unsaid = replaced(told, model=replaced(told.model, num_blocks=0))
    assert tariff_of([worker_snapshot("w", description=unsaid)], PRIOR_COSTS).kv_token_s == 0.0


@pytest.mark.parametrize("workers", [[], [worker_snapshot("w", decoding=16)]])
def test_before_any_measurement_the_prior_is_charged(workers: list[WorkerSnapshot]) -> None:
    tariff = tariff_of(workers, PRIOR_COSTS)
    assert replace(tariff, kv_token_s=0.0) == PRIOR_TARIFF
    assert PRIOR_TARIFF.output_token_s == pytest.approx(1.25e-3)
    assert PRIOR_TARIFF.prompt_s(1) == pytest.approx(0.25e-3 + 16e-3 / 512, rel=1e-3)
