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
