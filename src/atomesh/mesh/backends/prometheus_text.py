"""What an engine's GET /metrics says, in Prometheus' text format: just enough of it for a load report."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>[-+.\deE]+)", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Readings:
    """`totals` sums each family's samples over their labels, `labels` has those of its last sample."""

    totals: Mapping[str, float]
    labels: Mapping[str, Mapping[str, str]]

    def count(self, name: str) -> int:
        """A counter or gauge of whole things; 0 where there is none. Counters may end in `_total`."""
        return int(self.totals.get(name, self.totals.get(f"{name}_total", 0.0)))


def read_metrics(text: str, prefix: str) -> Readings:
    """Of the families that begin with `prefix`, and the process's own."""
    totals: dict[str, float] = {}
    labels: dict[str, dict[str, str]] = {}
    for sample in _SAMPLE.finditer(text):
        name = sample["name"]
        if not name.startswith((prefix, "process_")) or name.endswith(("_bucket", "_created")):
            continue
        totals[name] = totals.get(name, 0.0) + float(sample["value"])
        labels[name] = dict(_LABEL.findall(sample["labels"] or ""))
    return Readings(totals, labels)
