"""Recorded traffic: arrivals and lengths of real requests, in the two formats that are published.

* Mooncake (FAST'25), JSON lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` (one id per
  512-token block, which also names everything before it).
* Azure LLM inference 2023, CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`; no prefixes are known.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec

from atomesh.errors import ConfigurationError

MOONCAKE_BLOCK_TOKENS = 512
AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """`at_s` counts from the trace's first request.

    `prefix_ids` is empty where the trace knows no prefixes.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path, limit: int | None = None) -> list[TraceEntry]:
    """The first `limit` entries in order of arrival.

    Raises ConfigurationError that names the line which cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            first = lines.readline()
            lines.seek(0)
            parse = _parse_mooncake if first.startswith("{") else _parse_azure
            entries = list(islice(_numbered(lines, parse, path), limit))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the trace {path} cannot be read: {error}") from error
    if not entries:
        raise ConfigurationError(f"the trace {path} has no requests")
    entries.sort(key=lambda entry: entry.at_s)
    start = entries[0].at_s
    return [
        TraceEntry(entry.at_s - start, entry.input_tokens, entry.output_tokens, entry.prefix_ids)
        for entry in entries
    ]


def _numbered(
    lines: Iterable[str], parse: Callable[[str], TraceEntry | None], path: Path
) -> Iterator[TraceEntry]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = parse(line)
        except (ValueError, msgspec.DecodeError) as error:
            raise ConfigurationError(
                f"line {number} of the trace {path} is neither Mooncake's JSON nor Azure's CSV: {error}"
            ) from error
        if entry is not None:
            yield entry


def _parse_mooncake(line: str) -> TraceEntry:
    row = msgspec.json.decode(line, type=_MooncakeLine)
    return _checked(TraceEntry(row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids))


def _parse_azure(line: str) -> TraceEntry | None:
    row = next(csv.reader([line]))
    if row == AZURE_HEADER:
        return None
    if len(row) != len(AZURE_HEADER):
        raise ValueError(f"it has {len(row)} fields; {','.join(AZURE_HEADER)} are needed")
    at, context, generated = row
    # A time without a zone is read as local time; only differences are used, and UTC has no gaps in them.
    moment = datetime.fromisoformat(f"{at}+00:00" if "+" not in at else at)
    return _checked(TraceEntry(moment.timestamp(), int(context), int(generated)))


def _checked(entry: TraceEntry) -> TraceEntry:
    if entry.input_tokens < 1 or entry.output_tokens < 0 or any(key < 0 for key in entry.prefix_ids):
        raise ValueError(
            f"input {entry.input_tokens}, output {entry.output_tokens} tokens: none may be negative"
        )
    return entry
