import math
import time

import pytest

from atomesh.mesh.backends.prometheus_text import MAX_VALUE, read_metrics, whole_number


@pytest.mark.parametrize(
    "value",
    [
        "1e999",
        "-1e999",
        "NaN",
        "+Inf",
        "-Inf",
        "--",
        "1.2.3",
        "٣.٣.",
        "٣",
        "e",
        "1" + "0" * 4500,
        "1e300",
        "0x1",
    ],
)
def test_what_is_no_number_that_could_be_is_left_out(value: str) -> None:
    told = read_metrics(f"vllm:running {value}\nvllm:waiting 2\n", "vllm:")
    assert told.count("vllm:running") == 0
    assert told.share("vllm:running") == 0.0
    assert told.count("vllm:waiting") == 2


def test_sums_are_counts_and_finite() -> None:
    lines = [f'vllm:tokens_total{{engine="{n}"}} {MAX_VALUE:.0f}' for n in range(2000)]
    told = read_metrics("\n".join([*lines, "vllm:running -5", "vllm:usage 7.5", "vllm:idle -1"]), "vllm:")
    assert told.count("vllm:tokens") == 2**53
    assert told.count("vllm:running") == 0
    assert (told.share("vllm:usage"), told.share("vllm:idle")) == (1.0, 0.0)
    assert all(map(math.isfinite, told.totals.values()))


def test_a_sample_is_read_as_it_is_written() -> None:
    lines = (
        'vllm:usage{a="b"} 0.25',
        'vllm:info{size="16",odd="\\"}"} 1.0 1700000000',
        "process_start 1.7e+09",
        "other 3",
    )
    told = read_metrics("\n".join(lines), "vllm:")
    assert told.totals == {"vllm:usage": 0.25, "vllm:info": 1.0, "process_start": 1.7e9}
    assert told.labels["vllm:info"] == {"size": "16", "odd": '\\"}'}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16", 16),
        ("0", 0),
        (None, None),
        ("", None),
        ("-7", None),
        ("٣", None),
        ("²", None),
        ("9" * 4500, None),
    ],
)
def test_a_label_is_a_whole_number_or_none(text: str | None, number: int | None) -> None:
    assert whole_number(text) == number


def test_a_label_without_an_end_costs_no_more_than_reading_it() -> None:
    began = time.process_time()
    read_metrics('vllm:info{x="' + "a" * 10**6 + "} 1\n" + "vllm:info{" + "a" * 10**6 + "} 1\n", "vllm:")
    assert time.process_time() - began < 2.0
