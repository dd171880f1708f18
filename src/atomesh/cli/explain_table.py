"""An explanation as tables, in milliseconds: a line for each way that there was, a column for each term."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from atomesh.bench.conversation import printable

MOST_CANDIDATES = 16


def print_explanation(document: Mapping[str, Any], console: Console) -> None:
    """`document` as GET /explain/{id} has it."""
    for request in document["requests"]:
        for attempt in request["attempts"]:
            _print_attempt(request["request_id"], attempt, console)
        _print_measured(request, console)


def _print_attempt(request_id: str, attempt: Mapping[str, Any], console: Console) -> None:
    what = "the rest" if attempt["is_rest"] else "placed"
    console.print(
        f"{printable(request_id)}: {what} after {attempt['at_s'] * 1000:.1f} ms by {attempt['policy']}"
    )
    candidates: Sequence[Mapping[str, Any]] = attempt["candidates"]
    terms = list(dict.fromkeys(term for one in candidates for term in one["terms"]))
    table = Table("", "prefill", "decode", "cached", *terms, "sum, ms", box=None)
    for candidate in candidates[:MOST_CANDIDATES]:
        is_chosen = _same(candidate, attempt["chosen"])
        table.add_row(
            "▶" if is_chosen else "",
            printable(candidate["prefill"]),
            printable(candidate["decode"] or "–"),
            str(candidate["cached_tokens"]),
            *(_milliseconds(candidate["terms"].get(term)) for term in terms),
            _milliseconds(candidate["total_s"]),
        )
    console.print(table)
    if len(candidates) > MOST_CANDIDATES:
        console.print(f"  and {len(candidates) - MOST_CANDIDATES} dearer ones")
    for rejection in attempt["rejected"]:
        console.print(f"  not {printable(rejection['worker'])}: {printable(rejection['reason'])}")


def _print_measured(request: Mapping[str, Any], console: Console) -> None:
    if not request["attempts"]:
        console.print(f"{printable(request['request_id'])}: not placed")
        return
    predicted, measured = request["attempts"][-1]["predicted"], request["measured"]
    table = Table("", "cached tokens", "TTFT, ms", "transfer, ms", box=None)
    for name, source in (("predicted", predicted), ("measured", measured)):
        cached = source["cached_tokens"]
        table.add_row(
            name,
            "–" if cached is None else str(cached),
            _milliseconds(source["ttft_s"]),
            _milliseconds(source["transfer_s"]),
        )
    console.print(table)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["prefill"], one["decode"]) == (other["prefill"], other["decode"])


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.2f}"
