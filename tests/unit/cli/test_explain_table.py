from io import StringIO
from typing import Any

from rich.console import Console

from atomesh.cli.explain_table import print_explanation

LONG = "worker-with-a-long-name.rack-{}.example.internal:8100"


def candidate(
    prefill: str, decode: str | None, total_s: float, fetch_from: str | None = None
) -> dict[str, Any]:
    terms = {"queue": total_s, "relief": -0.000001}
    return {
        "prefill": prefill,
        "decode": decode,
        "terms": terms,
        "total_s": total_s,
        "cached_tokens": 64,
        "fetch_from": fetch_from,
    }


def printed(*candidates: dict[str, Any]) -> str:
    measured = {"cached_tokens": 64, "ttft_s": 0.25, "fetch_s": None, "transfer_s": 0.0}
    attempt = {
        "at_s": 0.001,
        "is_rest": False,
        "policy": "kv_aware",
        "chosen": candidates[0],
        "candidates": list(candidates),
        "predicted": measured,
        "rejected": [],
    }
    text = StringIO()
    document = {"requests": [{"request_id": "cmpl-1-0", "attempts": [attempt], "measured": measured}]}
    print_explanation(document, Console(file=text, width=80, highlight=False, soft_wrap=True))
    return text.getvalue()


def test_long_names_are_told_apart_by_numbers() -> None:
    lines = printed(
        candidate(LONG.format(1), LONG.format(2), 0.012),
        candidate(LONG.format(1), LONG.format(3), 0.034, fetch_from=LONG.format(4)),
        candidate(LONG.format(5), None, 0.056),
    ).splitlines()
    assert lines[1] == f"▶ 1: {LONG.format(1)}→{LONG.format(2)}"
    assert lines[2] == f"  2: {LONG.format(1)}→{LONG.format(3)}, the prefix sent by {LONG.format(4)}"
    assert lines[3] == f"  3: {LONG.format(5)}"
    assert [line.split() for line in lines[4:9]] == [
        ["ms", "▶", "1", "2", "3"],
        ["queue", "12.00", "34.00", "56.00"],
        ["relief", "0.00", "0.00", "0.00"],
        ["sum", "12.00", "34.00", "56.00"],
        ["cached", "tokens", "64", "64", "64"],
    ]


def test_those_beyond_the_first_few_are_counted() -> None:
    text = printed(*(candidate(f"w{number}", None, 0.01) for number in range(6)))
    assert "  4: w3\n" in text
    assert "w4" not in text
    assert "  and 2 more; --json has them all" in text
