"""An explanation as tables, in milliseconds: a column for each way that there was, a line for each term.

The ways are numbered, and their workers named above the table: names may be as long as they like.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from atomesh.bench.conversation import printable

MOST_CANDIDATES = 4


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
    shown = [attempt["chosen"], *(one for one in candidates if not _same(one, attempt["chosen"]))]
    for number, candidate in enumerate(shown[:MOST_CANDIDATES], start=1):
        console.print(f"{'▶' if number == 1 else ' '} {number}: {_name(candidate)}")
    console.print(_table(shown[:MOST_CANDIDATES]))
    if len(shown) > MOST_CANDIDATES:
        console.print(f"  and {len(shown) - MOST_CANDIDATES} more; --json has them all")
    for rejection in attempt["rejected"]:
        console.print(f"  not {printable(rejection['worker'])}: {printable(rejection['reason'])}")


def _table(shown: Sequence[Mapping[str, Any]]) -> Table:
    """The chosen one is the first."""
    numbers = [str(number) for number in range(1, len(shown) + 1)]
    table = Table("ms", "▶ " + numbers[0], *numbers[1:], box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for term in dict.fromkeys(term for candidate in shown for term in candidate["terms"]):
        table.add_row(term, *(_milliseconds(candidate["terms"].get(term)) for candidate in shown))
    table.add_row("sum", *(_milliseconds(candidate["total_s"]) for candidate in shown))
    table.add_row("cached tokens", *(str(candidate["cached_tokens"]) for candidate in shown))
    return table


def _name(candidate: Mapping[str, Any]) -> str:
    names = (candidate["prefill"], candidate["decode"])
    way = printable("→".join(name for name in names if name is not None))
    sender = candidate["fetch_from"]
    return way if sender is None else f"{way}, the prefix sent by {printable(sender)}"


def _print_measured(request: Mapping[str, Any], console: Console) -> None:
    if not request["attempts"]:
        console.print(f"{printable(request['request_id'])}: not placed")
        return
    predicted, measured = request["attempts"][-1]["predicted"], request["measured"]
    table = Table("", "cached tokens", "TTFT, ms", "fetch, ms", "transfer, ms", box=None)
    for name, source in (("predicted", predicted), ("measured", measured)):
        cached = source["cached_tokens"]
        table.add_row(
            name,
            "–" if cached is None else str(cached),
            _milliseconds(source["ttft_s"]),
            _milliseconds(source["fetch_s"]),
            _milliseconds(source["transfer_s"]),
        )
    console.print(table)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["prefill"], one["decode"]) == (other["prefill"], other["decode"])


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:z.2f}"
