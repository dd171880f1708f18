"""What to do about a child that has ended. Pure."""

from dataclasses import dataclass

EX_CONFIG = 78  # sysexits.h: the child has said what is wrong, and would say it again
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
STEADY_S = 30.0  # a child that lived so long was well
MAX_FAILED_STARTS = 4


@dataclass(frozen=True, slots=True)
class Ending:
    """`quick_endings`: how many in a row, this one included, came within STEADY_S of their start.

    `has_served`: the whole has been ready at least once.
    """

    status: int
    quick_endings: int
    has_served: bool


@dataclass(frozen=True, slots=True)
class Restart:
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


def decide(ending: Ending) -> Restart | GiveUp:
    """Restart with doubling delays; give up where another start can only end the same way."""
    if ending.status == EX_CONFIG:
        return GiveUp("it cannot run as asked")
    if not ending.has_served and ending.quick_endings >= MAX_FAILED_STARTS:
        return GiveUp(f"it ended {ending.quick_endings} times before it was ready")
    return Restart(min(FIRST_DELAY_S * 2 ** min(max(ending.quick_endings - 1, 0), 20), LONGEST_DELAY_S))
