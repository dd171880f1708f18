"""What an index has heard since its gateway began; figures for who watches it."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class IndexCounts:
    """All of them only grow.

    `events` by kind: stored, removed, cleared; `snapshots` by outcome: requested, taken, refused; `left_out`
    counts foreign blocks that were not indexed, by reason. A gap is a batch that did not follow on the one
    before, a mismatch a digest that was not the worker's, a loss that all that was known of a foreign engine
    had to be forgotten; `malformed` are foreign batches and events that could not be read.
    """

    events: Counter[str] = field(default_factory=Counter)
    snapshots: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    gaps: int = 0
    mismatches: int = 0
    losses: int = 0
    replays: int = 0
    malformed: int = 0
