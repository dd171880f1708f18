"""The figures of a run as text, laid out as vllm bench serve does, and as JSON with its key names; pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from atomesh.bench.record import RequestRecord, times_of
from atomesh.bench.statistics import Distribution, Figures

WIDTH = 50
LABEL_WIDTH = 40
_SECTIONS = (
    ("ttft", "TTFT", "Time to First Token"),
    ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
    ("itl", "ITL", "Inter-token Latency"),
    ("e2el", "E2EL", "End-to-end Latency"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How the load was made.

    `rate` in requests/s, None for a closed loop; `concurrency` None for no limit.
    """

    url: str
    model: str
    endpoint: str
    workload: str
    rate: float | None
    concurrency: int | None
    seed: int
    objectives_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Report:
    """`unfinished` requests were cut off by the user, and are in no figure."""

    settings: Settings
    figures: Figures
    notices: tuple[str, ...] = ()
    unfinished: int = 0


def to_text(report: Report) -> str:
    return "\n".join([*_head(report), *_latencies(report.figures), "=" * WIDTH, *_foot(report)])


def to_json(report: Report) -> dict[str, Any]:
    """Times in ms under vllm's names (`mean_ttft_ms`, …); null where nothing was measured."""
    settings, figures = report.settings, report.figures
    document: dict[str, Any] = {
        "url": settings.url,
        "model_id": settings.model,
        "endpoint": settings.endpoint,
        "workload": settings.workload,
        "request_rate": settings.rate,
        "max_concurrency": settings.concurrency,
        "seed": settings.seed,
        "goodput_objectives_ms": settings.objectives_ms,
        "duration": figures.duration_s,
        "completed": figures.completed,
        "failed": figures.failed,
        "unfinished": report.unfinished,
        "errors": [
            {"kind": failure.kind, "count": failure.count, "example": failure.example}
            for failure in figures.failures
        ],
        "total_input_tokens": figures.input_tokens,
        "total_output_tokens": figures.output_tokens,
        "input_tokens_from": _source(figures.input_counted, figures.completed, "planned"),
        "output_tokens_from": _source(figures.output_counted, figures.completed, "chunks"),
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.goodput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_throughput,
        "max_output_tokens_per_s": figures.peak_output_throughput,
        "max_concurrent_requests": figures.peak_concurrency,
        "p99_start_lag_ms": _ms(figures.start_lag.p99 if figures.start_lag else None),
        "notices": list(report.notices),
    }
    for key, _, _ in _SECTIONS:
        document |= _json_distribution(key, getattr(figures, key))
    return document


def record_to_json(record: RequestRecord, start_s: float) -> dict[str, Any]:
    """One request: `start` in seconds from `start_s`, and its latencies in ms or why it failed."""
    line: dict[str, Any] = {"start": record.started_s - start_s}
    if record.failure is not None:
        return line | {"error": record.failure.kind, "message": record.failure.message}
    if record.completion is None:
        return line
    times = times_of(record, record.completion)
    return line | {
        "input_tokens": record.completion.prompt_tokens or record.planned_input_tokens,
        "output_tokens": record.completion.output_tokens,
        "finish_reason": record.completion.finish_reason,
        "ttft_ms": _ms(times.ttft),
        "tpot_ms": _ms(times.tpot),
        "e2el_ms": _ms(times.e2el),
    }


def _head(report: Report) -> Iterator[str]:
    settings, figures = report.settings, report.figures
    yield f"{settings.model} at {settings.url} ({settings.endpoint}): {settings.workload}"
    yield _title(" Serving Benchmark Result ", "=")
    yield _count("Successful requests:", figures.completed)
    yield _count("Failed requests:", figures.failed)
    if report.unfinished:
        yield _count("Unfinished requests (interrupted):", report.unfinished)
    if settings.concurrency is not None:
        yield _count("Maximum request concurrency:", settings.concurrency)
    if settings.rate is not None:
        yield _number("Request rate configured (RPS):", settings.rate)
    yield _number("Benchmark duration (s):", figures.duration_s)
    yield _count("Total input tokens:", figures.input_tokens)
    yield _count("Total generated tokens:", figures.output_tokens)
    yield _number("Request throughput (req/s):", figures.request_throughput)
    if figures.goodput is not None:
        yield _number("Request goodput (req/s):", figures.goodput)
    yield _number("Output token throughput (tok/s):", figures.output_throughput)
    yield _number("Peak output token throughput (tok/s):", figures.peak_output_throughput)
    yield _count("Peak concurrent requests:", figures.peak_concurrency)
    yield _number("Total token throughput (tok/s):", figures.total_throughput)


def _latencies(figures: Figures) -> Iterator[str]:
    for key, short, long in _SECTIONS:
        yield _title(long, "-")
        found: Distribution | None = getattr(figures, key)
        for label, name in (("Mean", "mean"), ("Median", "p50"), ("P90", "p90"), ("P99", "p99")):
            value = getattr(found, name) if found is not None else None
            yield _number(f"{label} {short} (ms):", _ms(value))


def _foot(report: Report) -> Iterator[str]:
    figures, settings = report.figures, report.settings
    if figures.completed:
        source = _source(figures.output_counted, figures.completed, "chunks")
        yield f"Generated tokens are counted {_SOURCE_WORDS[source]}."
        if figures.input_counted < figures.completed:
            yield "Input tokens are as planned where the server gave no usage."
    if settings.objectives_ms:
        bounds = ", ".join(f"{name} ≤ {value:g} ms" for name, value in settings.objectives_ms.items())
        yield f"Goodput counts requests with {bounds}."
    for notice in report.notices:
        yield f"Notice: {notice}."
    if figures.failures:
        yield "Failures:"
    for failure in figures.failures:
        yield f"  {failure.count} × {failure.kind}: {failure.example}".rstrip(": ")


_SOURCE_WORDS = {
    "usage": "by the server's usage",
    "chunks": "as chunks of the stream, for want of usage",
    "mixed": "by the server's usage, and as chunks of the stream where it gave none",
}


def _source(counted: int, completed: int, otherwise: str) -> str:
    if completed and counted == completed:
        return "usage"
    return "mixed" if counted else otherwise


def _json_distribution(key: str, found: Distribution | None) -> dict[str, float | None]:
    names = {"mean": "mean", "std": "std", "median": "p50", "p50": "p50", "p90": "p90", "p99": "p99"}
    return {
        f"{word}_{key}_ms": _ms(getattr(found, field) if found is not None else None)
        for word, field in names.items()
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _title(text: str, fill: str) -> str:
    return f"{text:{fill}^{WIDTH}}"


def _count(label: str, value: int) -> str:
    return f"{label:<{LABEL_WIDTH}} {value:<10}".rstrip()


def _number(label: str, value: float | None) -> str:
    text = "-" if value is None else f"{value:.2f}"
    return f"{label:<{LABEL_WIDTH}} {text:<10}".rstrip()
