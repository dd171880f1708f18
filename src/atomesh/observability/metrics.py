"""Every metric that the HTTP face counts, declared once; what the engine reports is in engine_collector.

Labels are bounded: served models, our own routes, statuses, finish reasons, and nothing that a client sends.
The `vllm:` names and their buckets are those that dashboards and routers already read.
"""

from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from atomesh.observability.tallies import Count, Spread, TallyCounter, TallyHistogram
from atomesh.protocol.generation import ServingPath

ENGINE = "0"  # the label of the one logical engine behind a served model
FINISH_REASONS = ("stop", "length", "abort", "error")
TTFT_PARTS = ("queue", "prefill", "transfer", "first_decode")
PATHS: tuple[ServingPath, ...] = get_args(ServingPath)

_MODEL_LABELS = ("model_name", "engine")
_TTFT_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_TOKEN_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
)
_REQUEST_BUCKETS = (
    0.01,
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    60.0,
    120.0,
    480.0,
)
_LENGTH_BUCKETS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

_HISTOGRAMS = {
    "inter_token_latency_seconds": ("Between two tokens of a request.", _TOKEN_BUCKETS),
    "time_to_first_token_seconds": ("From a request's arrival to its first token's byte.", _TTFT_BUCKETS),
    "request_time_per_output_token_seconds": (
        "A request's mean time per token after the first.",
        _TOKEN_BUCKETS,
    ),
    "e2e_request_latency_seconds": ("From a request's arrival to its last byte.", _REQUEST_BUCKETS),
    "request_queue_time_seconds": ("Waiting in the engine before the first step.", _REQUEST_BUCKETS),
    "request_prefill_time_seconds": ("From the first step to the first token.", _REQUEST_BUCKETS),
    "request_decode_time_seconds": ("From the first token to the last.", _REQUEST_BUCKETS),
    "request_inference_time_seconds": ("From the first step to the last token.", _REQUEST_BUCKETS),
    "request_prompt_tokens": ("Prompt tokens of a request.", _LENGTH_BUCKETS),
    "request_generation_tokens": ("Generated tokens of a request.", _LENGTH_BUCKETS),
}


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """One served model's series: no label is looked up per token."""

    time_to_first_token_seconds: Spread
    inter_token_latency_seconds: Spread
    request_time_per_output_token_seconds: Spread
    e2e_request_latency_seconds: Spread
    request_queue_time_seconds: Spread
    request_prefill_time_seconds: Spread
    request_decode_time_seconds: Spread
    request_inference_time_seconds: Spread
    request_prompt_tokens: Spread
    request_generation_tokens: Spread
    prompt_tokens: Count
    generation_tokens: Count
    request_transfer_time_seconds: Spread
    ttft_parts: dict[str, Spread]
    paths: dict[ServingPath, Count]
    success: dict[str, Count]
    in_flight: Gauge


class FrontendMetrics:
    """Owns the registry; `render()` is the text of GET /metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.http_requests = self._counter(
            "atomesh_http_requests", "Requests answered.", "endpoint", "status"
        )
        self.unknown_fields = self._counter(
            "atomesh_unknown_request_fields",
            "Fields of requests that were ignored because no one knows them.",
            "endpoint",
        )
        self.disconnects = self._counter(
            "atomesh_client_disconnects", "Clients that left before the end of their answer."
        )
        self.cut_streams = self._counter("atomesh_cut_streams", "Streams that ended in an error frame.")
        self._in_flight = Gauge(
            "atomesh_requests_in_flight",
            "Requests between arrival and last byte.",
            ("model_name",),
            registry=self.registry,
        )
        self._histograms = {
            name: TallyHistogram(f"vllm:{name}", text, _MODEL_LABELS, buckets, self.registry)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._prompt_tokens = self._tally("vllm:prompt_tokens", "Prompt tokens prefilled.")
        self._generation_tokens = self._tally("vllm:generation_tokens", "Tokens generated.")
        self._success = self._tally("vllm:request_success", "Requests that ended.", "finished_reason")
        self._declare_paths()
        self._models: dict[str, ModelMetrics] = {}

    def for_model(self, name: str) -> ModelMetrics:
        """`name` must be a served model's own, never what a client wrote."""
        if name not in self._models:
            self._models[name] = self._declare_model(name)
        return self._models[name]

    def forget(self, name: str) -> None:
        """The model is not served any more: its series end."""
        if self._models.pop(name, None) is None:
            return
        for histogram in (*self._histograms.values(), self._transfer_s, self._ttft_parts):
            histogram.forget(name)
        for counter in (self._prompt_tokens, self._generation_tokens, self._success, self._paths):
            counter.forget(name)
        self._in_flight.remove(name)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _declare_paths(self) -> None:
        self._transfer_s = TallyHistogram(
            "atomesh_request_transfer_time_seconds",
            "What the decode worker waited for KV, after prefill's first token.",
            _MODEL_LABELS,
            _TOKEN_BUCKETS,
            self.registry,
        )
        self._ttft_parts = TallyHistogram(
            "atomesh_time_to_first_token_part_seconds",
            "The time to the first token's byte, in parts that sum to it.",
            (*_MODEL_LABELS, "part"),
            _TTFT_BUCKETS,
            self.registry,
        )
        self._paths = self._tally(
            "atomesh_requests_served", "Requests answered in full, by the way they took.", "path"
        )

    def _tally(self, name: str, text: str, *more_labels: str) -> TallyCounter:
        return TallyCounter(name, text, (*_MODEL_LABELS, *more_labels), self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _declare_model(self, name: str) -> ModelMetrics:
        return ModelMetrics(
            **{key: histogram.labels(name, ENGINE) for key, histogram in self._histograms.items()},
            prompt_tokens=self._prompt_tokens.labels(name, ENGINE),
            generation_tokens=self._generation_tokens.labels(name, ENGINE),
            request_transfer_time_seconds=self._transfer_s.labels(name, ENGINE),
            ttft_parts={part: self._ttft_parts.labels(name, ENGINE, part) for part in TTFT_PARTS},
            paths={path: self._paths.labels(name, ENGINE, path) for path in PATHS},
            success={reason: self._success.labels(name, ENGINE, reason) for reason in FINISH_REASONS},
            in_flight=self._in_flight.labels(name),
        )
