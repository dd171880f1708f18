import random
from math import inf, isfinite, nan

import pytest
from msgspec.structs import replace

from atomesh.mesh.placement import cost_model as cost_model_module
from atomesh.mesh.placement.cost_model import CostModel
from atomesh.mesh.placement.costs import PRIOR_LINK, PRIOR_STEP, StepCosts
from atomesh.protocol.roofline import Roofline
from atomesh.protocol.step_sample import StepSample

TRUE = StepCosts(5e-3, 1e-4, 2e-8, 3e-7, 4e-4)


def step(rng: random.Random, costs: StepCosts, tokens: int, batch: int, noise: float = 0.05) -> StepSample:
    start = rng.randrange(3000)
    quadratic = (start + tokens) ** 2 - start**2 if tokens else 0
    context = sum(rng.randrange(50, 4000) for _ in range(batch))
    seconds = (
        costs.fixed_s
        + costs.token_s * tokens
        + costs.quadratic_s * quadratic
        + costs.context_s * context
        + costs.sequence_s * batch
    )
    return StepSample(seconds * rng.uniform(1 - noise, 1 + noise), tokens, quadratic, context, batch)


def measured(costs: StepCosts, count: int, *, seed: int = 1, decode_only: bool = False) -> CostModel:
    rng, model = random.Random(seed), CostModel()
    feed(model, rng, costs, count, decode_only=decode_only)
    return model


def feed(
    model: CostModel, rng: random.Random, costs: StepCosts, count: int, *, decode_only: bool = False
) -> None:
    for _ in range(count):
        tokens = 0 if decode_only else rng.choice([0, 0, 128, 512, rng.randrange(1, 512)])
        model.observe_step("w", step(rng, costs, tokens, rng.randrange(0 if tokens else 1, 16)))


def test_nothing_measured_costs_the_prior() -> None:
    view = CostModel().view()
    assert view.step("w") == PRIOR_STEP
    assert view.link("a", "b") == PRIOR_LINK


def test_the_first_step_scales_the_prior_as_a_whole() -> None:
    model = CostModel()
    model.observe_step("w", StepSample(2 * PRIOR_STEP.prefill_s(512, 0), 512, 512**2, 0, 0))
    assert model.view().step("w").row == pytest.approx([2 * value for value in PRIOR_STEP.row])


def test_all_five_coefficients_are_found_within_a_tenth() -> None:
    assert measured(TRUE, 1024).view().step("w").row == pytest.approx(TRUE.row, rel=0.1)


def test_predictions_are_good_long_before() -> None:
    learned = measured(TRUE, 32).view().step("w")
    assert learned.prefill_s(512, 0) == pytest.approx(TRUE.prefill_s(512, 0), rel=0.1)
    assert learned.decode_s(16_000, 8) == pytest.approx(TRUE.decode_s(16_000, 8), rel=0.2)


def test_what_the_samples_say_nothing_of_stays_at_the_scaled_prior() -> None:
    """A worker that only decodes: tokens and attention of prompts are as the prior has them to each other."""
    learned = measured(TRUE, 512, decode_only=True).view().step("w")
    assert learned.decode_s(16_000, 8) == pytest.approx(TRUE.decode_s(16_000, 8), rel=0.1)
    prior_ratio = PRIOR_STEP.quadratic_s / PRIOR_STEP.token_s
    assert learned.quadratic_s / learned.token_s == pytest.approx(prior_ratio)
    assert learned.token_s > 0.0


def test_many_decode_steps_do_not_make_prefill_forgotten() -> None:
    model, rng = CostModel(), random.Random(3)
    feed(model, rng, TRUE, 512)
    feed(model, rng, TRUE, 2048, decode_only=True)
    assert model.view().step("w").prefill_s(512, 0) == pytest.approx(TRUE.prefill_s(512, 0), rel=0.05)


def test_a_worker_that_becomes_slower_is_known_to_be_in_a_few_hundred_steps() -> None:
    model, rng = CostModel(), random.Random(2)
    feed(model, rng, TRUE, 512)
    feed(model, rng, StepCosts(*(3 * value for value in TRUE.row)), 512)
    learned = model.view().step("w")
    assert learned.prefill_s(512, 0) == pytest.approx(3 * TRUE.prefill_s(512, 0), rel=0.1)


def test_a_step_that_hung_moves_little() -> None:
    model, rng = CostModel(), random.Random(4)
    feed(model, rng, TRUE, 1023)
    before = model.view().step("w").prefill_s(512, 0)
    model.observe_step("w", StepSample(60.0, 512, 512**2, 0, 0))
    assert model.view().step("w").prefill_s(512, 0) == pytest.approx(before, rel=0.1)


def test_a_new_worker_is_taken_for_as_fast_as_the_others_of_its_model() -> None:
    model = measured(TRUE, 256)
    model.introduce("w", "m")
    model.introduce("new", "m", chunk_tokens=128)
    model.introduce("other", "another")
    view = model.view()
    assert view.step("new").row == pytest.approx(view.step("w").row)
    assert view.step("new").chunk_tokens == 128
    assert view.step("other") == PRIOR_STEP


BOUNDS = Roofline(
    weight_bytes=2 * 10**9,
    token_flops=2 * 10**9,
    sequence_flops=3 * 10**9,
    pair_flops=4 * 10**5,
    kv_bytes=10**5,
    flops_per_s=1e12,
    bytes_per_s=1e11,
)
AS_BOUND = [0.02, 0.002, 2e-7, 1e-6, 0.003]


def test_a_worker_that_says_how_fast_it_can_be_is_taken_at_its_word() -> None:
    model = CostModel()
    model.introduce("w", "m", chunk_tokens=256, bounds=BOUNDS)
    model.introduce("other", "another", bounds=replace(BOUNDS, flops_per_s=2e12, bytes_per_s=2e11))
    view = model.view()
    assert view.step("w").row == pytest.approx(AS_BOUND)
    assert view.step("w").chunk_tokens == 256
    assert view.step("other").row == pytest.approx([value / 2 for value in AS_BOUND])


def test_its_word_is_corrected_by_how_far_off_the_others_were() -> None:
    model = CostModel()
    for name in ("w", "new"):
        model.introduce(name, "m", bounds=BOUNDS)
    model.introduce("twice", "m", bounds=replace(BOUNDS, flops_per_s=2e12, bytes_per_s=2e11))
    model.introduce("silent", "m")
    model.introduce("other", "another", bounds=BOUNDS)
    thrice = StepCosts(*(3 * value for value in AS_BOUND))
    rng = random.Random(7)
    for _ in range(256):
        model.observe_step("w", step(rng, thrice, rng.choice([0, 128, 512]), rng.randrange(1, 16), noise=0.0))
    view = model.view()
    assert view.step("w").row == pytest.approx(thrice.row, rel=0.01)
    assert view.step("new").row == pytest.approx(view.step("w").row)
    assert view.step("twice").row == pytest.approx([value / 2 for value in view.step("w").row])
    assert view.step("silent").row == pytest.approx(view.step("w").row)
    assert view.step("other").row == pytest.approx(AS_BOUND)


def slowed(times: float) -> Roofline:
    return replace(BOUNDS, flops_per_s=1e12 / times, bytes_per_s=1e11 / times)


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize(("says", "hoped"), [(3.0, 1.0), (4.0, 1.0), (12.0, 3.0)])
def test_a_worker_never_tried_is_hoped_to_be_as_fast_as_the_fastest_if_its_word_is_four_times_off(
    says: float, hoped: float, is_measured: bool
) -> None:
    model = CostModel()
    model.introduce("w", "m", bounds=BOUNDS)
    model.introduce("new", "m", bounds=slowed(says))
    if is_measured:
        model.observe_step("w", StepSample(5 * StepCosts(*AS_BOUND).decode_s(900, 3), 0, 0, 900, 3))
    fastest = model.view().step("w").row
    assert fastest == pytest.approx([(5 if is_measured else 1) * value for value in AS_BOUND])
    assert model.view().step("new").row == pytest.approx([hoped * value for value in fastest])


def test_hope_goes_by_those_whose_steps_show_what_it_is_about() -> None:
    """A prefill worker shows nothing of decode: what its fit says of that is no measurement, slow or fast."""
    for times in (20.0, 0.1):
        model = CostModel()
        for name, bounds in (("prefill", BOUNDS), ("decode", BOUNDS), ("new", slowed(3.0))):
            model.introduce(name, "m", bounds=bounds)
        as_bound = StepCosts(*AS_BOUND)
        model.observe_step("prefill", StepSample(times * as_bound.prefill_s(512, 0), 512, 512**2, 0, 0))
        before = model.view()
        prefill = before.step("prefill").row
        assert before.step("new").row == pytest.approx(prefill)
        model.observe_step("decode", StepSample(as_bound.decode_s(900, 3), 0, 0, 900, 3))
        hoped, decode = model.view().step("new").row, model.view().step("decode").row
        assert decode == pytest.approx(AS_BOUND)
        assert hoped[1:3] == pytest.approx(prefill[1:3])
        assert (hoped[0], *hoped[3:]) == pytest.approx((decode[0], *decode[3:]))


def test_hope_ends_with_the_first_step() -> None:
    model = CostModel()
    model.introduce("w", "m", bounds=BOUNDS)
    model.introduce("new", "m", bounds=slowed(4.0))
    slow = StepCosts(*(4 * value for value in AS_BOUND))
    model.observe_step("new", StepSample(slow.decode_s(900, 3), 0, 0, 900, 3))
    assert model.view().step("new").row == pytest.approx(slow.row)


def test_its_first_step_scales_its_own_word() -> None:
    model = CostModel()
    model.introduce("w", "m", bounds=BOUNDS)
    model.observe_step("w", StepSample(2 * StepCosts(*AS_BOUND).prefill_s(512, 0), 512, 512**2, 0, 0))
    assert model.view().step("w").row == pytest.approx([2 * value for value in AS_BOUND])


@pytest.mark.parametrize(
    "nonsense",
    [
        {"flops_per_s": 0.0},
        {"bytes_per_s": nan},
        {"flops_per_s": inf},
        {"bytes_per_s": -1.0},
        {"kv_bytes": 0},
    ],
)
def test_a_word_that_makes_no_sense_is_none(nonsense: dict[str, float]) -> None:
    model = CostModel()
    model.introduce("w", "m", bounds=replace(BOUNDS, **nonsense))
    assert model.view().step("w") == PRIOR_STEP


def test_the_largest_step_says_how_long_chunks_are() -> None:
    assert measured(TRUE, 256).view().step("w").chunk_tokens == 512


def test_a_worker_that_is_gone_is_forgotten_with_its_links() -> None:
    model = measured(TRUE, 64)
    model.observe_transfer("w", "d", 10**6, 1.0)
    model.forget("w")
    assert model.view().step("w") == PRIOR_STEP
    assert model.view().links == {}


@pytest.mark.parametrize("seconds", [0.0, -1.0, nan, inf])
def test_times_that_cannot_be_are_ignored(seconds: float) -> None:
    model = CostModel()
    model.observe_step("w", StepSample(seconds, 10, 100, 0, 0))
    model.observe_transfer("a", "b", 100, seconds)
    assert model.view().steps == {}
    assert model.view().links == {}


def test_links_are_learned_in_each_direction() -> None:
    model, rng = CostModel(), random.Random(5)
    for _ in range(256):
        num_bytes = rng.randrange(10**5, 10**8)
        model.observe_transfer("a", "b", num_bytes, 0.002 + num_bytes / 3e9)
        model.observe_transfer("b", "a", num_bytes, 0.004 + num_bytes / 1e9)
    view = model.view()
    assert view.link("a", "b").transfer_s(10**7) == pytest.approx(0.002 + 1e7 / 3e9, rel=0.05)
    assert view.link("b", "a").transfer_s(10**7) == pytest.approx(0.004 + 1e7 / 1e9, rel=0.05)
    mean = (view.link("a", "b").byte_s + view.link("b", "a").byte_s) / 2
    assert view.link("x", "y").byte_s == pytest.approx(mean)


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model_module, "MAX_WORKERS", 3)
    monkeypatch.setattr(cost_model_module, "MAX_LINKS", 2)
    model = CostModel()
    for name in "abcdef":
        model.observe_step(name, StepSample(1.0, 10, 100, 0, 0))
        model.observe_transfer(name, "x", 100, 1.0)
    assert list(model.view().steps) == ["d", "e", "f"]
    assert list(model.view().links) == [("e", "x"), ("f", "x")]


@pytest.mark.parametrize(
    "sample",
    [StepSample(1e308, 1, 0, 0, 0), StepSample(5e-324, 512, 0, 0, 0), StepSample(1.0, 1, 10**30, 0, 0)],
)
def test_what_no_step_can_have_been_is_ignored(sample: StepSample) -> None:
    model = CostModel()
    for _ in range(40):
        model.observe_step("w", sample)
    assert model.view().step("w") == PRIOR_STEP
    model.observe_transfer("w", "v", 10**30, 1.0)
    model.observe_transfer("w", "v", 10, 1e308)
    assert model.view().link("w", "v") == PRIOR_LINK


@pytest.mark.parametrize("seconds", [3600.0, 1e-18])
def test_whatever_is_believed_prices_stay_finite(seconds: float) -> None:
    model = CostModel()
    for quadratic in (0, 10**18):
        for _ in range(40):
            model.observe_step("w", StepSample(seconds, 1, quadratic, 10**18, 1))
    assert isfinite(model.view().step("w").prefill_s(10**6, 0))


def test_costs_are_settled_by_sixteen_steps_with_prompts() -> None:
    model = CostModel()
    model.introduce("w", "m")
    for _ in range(100):
        model.observe_step("w", StepSample(0.01, 0, 0, 100, 1))
    for _ in range(15):
        assert model.view().settled == frozenset()
        model.observe_step("w", StepSample(0.01, 100, 10_000, 0, 0))
    assert model.view().settled == frozenset()
    model.observe_step("w", StepSample(0.01, 100, 10_000, 0, 0))
    assert model.view().settled == {"w"}
    model.forget("w")
    assert model.view().settled == frozenset()
