"""Several engines' loads as if they were one's."""

from collections import Counter
from collections.abc import Iterable
from functools import reduce
from typing import Any

from atomesh.protocol.worker import LoadReport


def total_load(loads: Iterable[LoadReport]) -> LoadReport:
    """Counts add up, by outcome where they have one; the longest present step stands for all."""
    return reduce(_sum, loads, LoadReport())


def _sum(left: LoadReport, right: LoadReport) -> LoadReport:
    fields: dict[str, Any] = {
        name: _add(getattr(left, name), getattr(right, name)) for name in LoadReport.__struct_fields__
    }
    fields["step_s"] = max(left.step_s, right.step_s)
    fields["draining"] = left.draining or right.draining
    return LoadReport(**fields)


def _add(left: Any, right: Any) -> Any:
    return dict(Counter(left) + Counter(right)) if isinstance(left, dict) else left + right
