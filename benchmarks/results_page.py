"""docs/results.md: each benchmark owns one section of it and replaces that alone."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_section(page: Path, owner: str, text: str) -> None:
    """Put `text` between the marks of `owner`, at the end of the page if it has none yet."""
    begin, end = f"<!-- {owner}: written by it, do not edit -->", f"<!-- end of {owner} -->"
    section = f"{begin}\n{text.strip()}\n{end}\n"
    old = (
        page.read_text()
        if page.exists()
        else "# Results\n\nA section between two comments is written by the benchmark that they name.\n"
    )
    before, found, rest = old.partition(begin)
    after = rest.partition(end)[2].removeprefix("\n")
    new = before + section + after if found else f"{old.rstrip()}\n\n{section}"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(new)


def publish(options: argparse.Namespace, owner: str, text: str, document: Any) -> None:
    """To where the options say: `text` into the page `--write`, and `document` to stdout with --json."""
    if options.write is not None:
        write_section(options.write, owner, text)
    print(json.dumps(document, indent=2) if options.json else text)
