"""What an engine's GET /metrics says, in Prometheus' text format: just enough of it for a load report."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_VALUE = 2.0**53  # as far as such a number counts exactly; no engine has counted further
MAX_DIGITS = 15
MAX_CHARS = 4 * 2**20  # the rest is left out
_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_SAMPLE = re.compile(
    rf"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{{(?P<labels>.*)\}})? (?P<value>{_NUMBER})(?=\s|$)",
    re.MULTILINE | re.ASCII,
)
_LABEL = re.compile(r'\b(\w++)="((?:[^"\\]|\\.)*+)"', re.ASCII)


@dataclass(frozen=True, slots=True)
class Readings:
    """`totals` sums each family's samples over their labels, `labels` has those of its last sample.

    What is no number, or none that could be, is left out.
    """

    totals: Mapping[str, float]
    labels: Mapping[str, Mapping[str, str]]

    def count(self, name: str) -> int:
        """A counter or gauge of whole things; 0 where there is none. Counters may end in `_total`."""
        told = self.totals.get(name, self.totals.get(f"{name}_total", 0.0))
        return int(min(max(told, 0.0), MAX_VALUE))

    def share(self, name: str) -> float:
        """A gauge from 0 to 1."""
        return min(max(self.totals.get(name, 0.0), 0.0), 1.0)


def whole_number(text: str | None) -> int | None:
    """Of a label; None where it is none, or has more than MAX_DIGITS."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > MAX_DIGITS:
        return None
    return int(text)


def read_metrics(text: str, prefix: str) -> Readings:
    """Of the families that begin with `prefix`, and the process's own."""
    totals: dict[str, float] = {}
    labels: dict[str, dict[str, str]] = {}
    for sample in _SAMPLE.finditer(text[:MAX_CHARS]):
        name = sample["name"]
        if not name.startswith((prefix, "process_")) or name.endswith(("_bucket", "_created")):
            continue
        value = float(sample["value"])
        if not abs(value) <= MAX_VALUE:
            continue
        totals[name] = totals.get(name, 0.0) + value
        labels[name] = dict(_LABEL.findall(sample["labels"] or ""))
    return Readings(totals, labels)
