from dataclasses import replace

import msgspec

from atomesh.bench.completion_stream import Completion, OutputChunk
from atomesh.bench.record import Failure, RequestRecord
from atomesh.bench.report import Report, Settings, record_to_json, to_json, to_text
from atomesh.bench.statistics import Distribution, FailureCount, Figures

SETTINGS = Settings("http://s", "m", "chat", "random lengths", 2.5, 8, 0, {"ttft": 500.0})
FIGURES = Figures(
    duration_s=10.0,
    completed=4,
    failures=(FailureCount("HTTP 503", 2, "full"), FailureCount("timeout", 1, "")),
    input_tokens=400,
    output_tokens=100,
    input_counted=4,
    output_counted=4,
    request_throughput=0.4,
    goodput=0.3,
    output_throughput=10.0,
    total_throughput=50.0,
    peak_output_throughput=25.0,
    peak_concurrency=3,
    start_lag=None,
    ttft=Distribution(mean=0.1, std=0.01, p50=0.09, p90=0.2, p99=0.25),
    tpot=None,
    itl=None,
    e2el=Distribution(mean=1.0, std=0.5, p50=0.9, p90=2.0, p99=2.5),
)
REPORT = Report(SETTINGS, FIGURES, notices=("mind this",), unfinished=5)
TEXT = """\
m at http://s (chat): random lengths
============ Serving Benchmark Result ============
Successful requests:                     4
Failed requests:                         3
Unfinished requests (interrupted):       5
Maximum request concurrency:             8
Request rate configured (RPS):           2.50
Benchmark duration (s):                  10.00
Total input tokens:                      400
Total generated tokens:                  100
Request throughput (req/s):              0.40
Request goodput (req/s):                 0.30
Output token throughput (tok/s):         10.00
Peak output token throughput (tok/s):    25.00
Peak concurrent requests:                3
Total token throughput (tok/s):          50.00
---------------Time to First Token----------------
Mean TTFT (ms):                          100.00
Median TTFT (ms):                        90.00
P90 TTFT (ms):                           200.00
P99 TTFT (ms):                           250.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          -
Median TPOT (ms):                        -
P90 TPOT (ms):                           -
P99 TPOT (ms):                           -
---------------Inter-token Latency----------------
Mean ITL (ms):                           -
Median ITL (ms):                         -
P90 ITL (ms):                            -
P99 ITL (ms):                            -
----------------End-to-end Latency----------------
Mean E2EL (ms):                          1000.00
Median E2EL (ms):                        900.00
P90 E2EL (ms):                           2000.00
P99 E2EL (ms):                           2500.00
==================================================
Generated tokens are counted by the server's usage.
Goodput counts requests with ttft ≤ 500 ms.
Notice: mind this.
Failures:
  2 × HTTP 503: full
  1 × timeout"""


def test_the_text_is_laid_out_as_users_of_vllm_bench_know_it() -> None:
    assert to_text(REPORT) == TEXT


def test_what_was_not_asked_is_not_shown() -> None:
    settings = replace(SETTINGS, rate=None, concurrency=None, objectives_ms={})

    text = to_text(Report(settings, replace(FIGURES, goodput=None, failures=())))

    for words in ("goodput", "Goodput", "RPS", "concurrency", "Unfinished", "Notice", "Failures"):
        assert words not in text


def test_tokens_counted_as_chunks_are_owned_up_to() -> None:
    by_chunks = to_text(replace(REPORT, figures=replace(FIGURES, output_counted=0, input_counted=0)))
    mixed = to_text(replace(REPORT, figures=replace(FIGURES, output_counted=1)))

    assert "counted as chunks of the stream, for want of usage." in by_chunks
    assert "Input tokens are as planned where the server gave no usage." in by_chunks
    assert "counted by the server's usage, and as chunks of the stream where it gave none." in mixed


def test_json_has_vllms_names_and_nothing_that_json_cannot_say() -> None:
    document = msgspec.json.decode(msgspec.json.encode(to_json(REPORT)))

    assert (document["completed"], document["failed"], document["unfinished"]) == (4, 3, 5)
    assert (document["duration"], document["total_input_tokens"], document["total_output_tokens"]) == (
        10,
        400,
        100,
    )
    assert (document["request_throughput"], document["request_goodput"]) == (0.4, 0.3)
    assert (document["output_throughput"], document["total_token_throughput"]) == (10.0, 50.0)
    assert (document["mean_ttft_ms"], document["median_ttft_ms"], document["p99_ttft_ms"]) == (100, 90, 250)
    assert (document["p50_e2el_ms"], document["p90_e2el_ms"], document["std_e2el_ms"]) == (900, 2000, 500)
    assert document["p99_tpot_ms"] is None
    assert document["output_tokens_from"] == "usage"
    assert document["errors"] == [
        {"kind": "HTTP 503", "count": 2, "example": "full"},
        {"kind": "timeout", "count": 1, "example": ""},
    ]
    assert document["notices"] == ["mind this"]


def test_a_request_of_its_own() -> None:
    done = Completion((OutputChunk(2.5, 1), OutputChunk(3.0, 1)), 2.5, 3.0, "stop", None, 2, False)

    assert record_to_json(RequestRecord(2.0, 2.0, 3.0, 9, completion=done), start_s=1.5) == {
        "start": 0.5,
        "input_tokens": 9,
        "output_tokens": 2,
        "finish_reason": "stop",
        "ttft_ms": 500.0,
        "tpot_ms": 500.0,
        "e2el_ms": 1000.0,
    }


def test_a_failed_request_of_its_own() -> None:
    failed = RequestRecord(2.0, 2.0, 3.0, 9, failure=Failure("HTTP 503", "full"))

    assert record_to_json(failed, start_s=2.0) == {"start": 0.0, "error": "HTTP 503", "message": "full"}
