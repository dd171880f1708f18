from atomesh.observability.metrics import FINISH_REASONS, FrontendMetrics
from atomesh.observability.request_meter import RequestMeter
from atomesh.protocol.generation import Timings
from atomesh.testing.manual_clock import ManualClock

LABELS = {"model_name": "m", "engine": "0"}


def value(metrics: FrontendMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {**LABELS, **labels})


def test_a_request_s_times_are_told_once_each() -> None:
    clock, metrics = ManualClock(), FrontendMetrics()
    meter = RequestMeter(metrics.for_model("m"), clock, clock.now(), prompt_tokens=10)
    clock.advance(0.5)
    meter.saw_step(1)
    clock.advance(0.125)
    meter.saw_step(2)
    clock.advance(0.375)
    meter.saw_step(2)
    meter.saw_finish("stop")
    clock.advance(0.25)
    meter.saw_end(5, Timings(0.25, 0.125))
    sums = {
        "time_to_first_token_seconds": 0.5,
        "inter_token_latency_seconds": 0.5,
        "request_time_per_output_token_seconds": 0.125,
        "e2e_request_latency_seconds": 1.25,
        "request_queue_time_seconds": 0.25,
        "request_prefill_time_seconds": 0.125,
        "request_decode_time_seconds": 0.5,
        "request_inference_time_seconds": 0.625,
        "request_prompt_tokens": 10.0,
        "request_generation_tokens": 5.0,
    }
    assert {name: value(metrics, f"vllm:{name}_sum") for name in sums} == sums
    assert value(metrics, "vllm:inter_token_latency_seconds_count") == 2
    assert value(metrics, "vllm:prompt_tokens_total") == 10
    assert value(metrics, "vllm:generation_tokens_total") == 5
    counts = {
        reason: value(metrics, "vllm:request_success_total", finished_reason=reason)
        for reason in FINISH_REASONS
    }
    assert counts == {"stop": 1, "length": 0, "abort": 0, "error": 0}


def test_a_model_s_series_are_made_once() -> None:
    metrics = FrontendMetrics()
    assert metrics.for_model("m") is metrics.for_model("m")
    assert len(metrics.render().splitlines()) < 600


def test_the_parts_of_the_time_to_the_first_token_sum_to_it() -> None:
    clock, metrics = ManualClock(), FrontendMetrics()
    meter = RequestMeter(metrics.for_model("m"), clock, clock.now(), prompt_tokens=10)
    clock.advance(1.0)
    meter.saw_step(1, Timings(0.25, 0.5, 0.125))
    clock.advance(1.0)
    meter.saw_step(1, Timings(0.25, 0.5, 0.125))
    parts = {"queue": 0.25, "prefill": 0.5, "transfer": 0.125, "first_decode": 0.125}
    name = "atomesh_time_to_first_token_part_seconds_sum"
    assert {part: value(metrics, name, part=part) for part in parts} == parts
    assert value(metrics, "vllm:time_to_first_token_seconds_sum") == sum(parts.values())


def test_the_way_of_an_answer_counts_when_it_is_whole() -> None:
    clock, metrics = ManualClock(), FrontendMetrics()
    for path, transfer_s in (("prefill-decode", 0.5), ("prefill-decode", 0.25), ("recomputed", 0.0)):
        meter = RequestMeter(metrics.for_model("m"), clock, clock.now(), prompt_tokens=1)
        meter.saw_step(1)
        meter.saw_end(1, Timings(0.0, 0.0, transfer_s), path)
    cut = RequestMeter(metrics.for_model("m"), clock, clock.now(), prompt_tokens=1)
    cut.saw_step(1)
    cut.saw_finish("error")
    name = "atomesh_requests_served_total"
    counts = {"unified": 0.0, "prefill-decode": 2.0, "local-prefill": 0.0, "recomputed": 1.0}
    assert {path: value(metrics, name, path=path) for path in counts} == counts
    assert value(metrics, "atomesh_request_transfer_time_seconds_sum") == 0.75


def test_a_model_that_is_forgotten_has_no_series() -> None:
    metrics = FrontendMetrics()
    before = metrics.render().count(b"\n")
    for name in ("one", "other"):
        metrics.for_model(name)
    metrics.forget("other")
    metrics.forget("nobody")

    shown = metrics.render()
    assert b'"one"' in shown
    assert b'"other"' not in shown
    metrics.forget("one")
    assert metrics.render().count(b"\n") == before
