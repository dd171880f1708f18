"""Every scorer, by the name of its term; imported on use. A new one is a file, and a line here.

A policy that prices by seconds sums all terms of KV_AWARE; one that only counts sums those of WORK.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from atomesh.mesh.placement.scorers.scorer import PairScorer, SeatScorer

_HERE = "atomesh.mesh.placement.scorers"


@dataclass(frozen=True, slots=True)
class ScorerNames:
    """Term → "module:function": of the worker that prefills, of the one that decodes, of the pair."""

    prefill: Mapping[str, str]
    decode: Mapping[str, str]
    pair: Mapping[str, str]


WORK = ScorerNames(
    prefill={"prefill_work": f"{_HERE}.work:prefill_work"},
    decode={"decode_work": f"{_HERE}.work:decode_work"},
    pair={"hand_off_work": f"{_HERE}.work:hand_off_work"},
)
KV_AWARE = ScorerNames(
    prefill={
        "queue": f"{_HERE}.queue:queue",
        "fetch": f"{_HERE}.fetch:fetch",
        "compute": f"{_HERE}.compute:compute",
        "waste": f"{_HERE}.waste:waste",
        "relief": f"{_HERE}.relief:relief",
        "interference": f"{_HERE}.interference:interference",
    },
    decode={
        "room": f"{_HERE}.room:room",
        "decode_step": f"{_HERE}.decode_step:decode_step",
        "crowding": f"{_HERE}.crowding:crowding",
    },
    pair={
        "hand_off": f"{_HERE}.hand_off:hand_off",
        "decode_queue": f"{_HERE}.decode_queue:decode_queue",
    },
)
SCORERS: Mapping[str, ScorerNames] = {"work": WORK, "kv_aware": KV_AWARE}


@dataclass(frozen=True, slots=True)
class Scorers:
    prefill: tuple[tuple[str, SeatScorer], ...]
    decode: tuple[tuple[str, SeatScorer], ...]
    pair: tuple[tuple[str, PairScorer], ...]


@cache
def load_scorers(name: str) -> Scorers:
    """The scorers of that entry of SCORERS."""
    names = SCORERS[name]
    return Scorers(_load(names.prefill), _load(names.decode), _load(names.pair))


def _load(names: Mapping[str, str]) -> tuple[tuple[str, Any], ...]:
    return tuple((term, _resolve(target)) for term, target in names.items())


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
