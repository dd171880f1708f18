"""Service level objectives, and which requests meet them (DistServe, OSDI'24)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atomesh.bench.record import RequestTimes
from atomesh.errors import ConfigurationError

OBJECTIVES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Objectives:
    """Upper bounds in seconds; empty means that none was given."""

    bounds: Mapping[str, float]

    def are_met_by(self, times: RequestTimes) -> bool:
        """A request of one token has no time per output token, and meets any bound on it."""
        measured = {"ttft": times.ttft, "tpot": times.tpot or 0.0, "e2el": times.e2el}
        return all(measured[name] <= bound for name, bound in self.bounds.items())


def parse_objectives(texts: Sequence[str]) -> Objectives:
    """From "ttft:500", "tpot:50", "e2el:2000" (milliseconds).

    Raises ConfigurationError that says what is wrong with which.
    """
    bounds: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        if name not in OBJECTIVES:
            raise ConfigurationError(
                f"goodput objective {text!r} is unknown; write {', '.join(OBJECTIVES)} as NAME:MILLISECONDS"
            )
        if name in bounds:
            raise ConfigurationError(f"goodput objective {name} is given twice; give it once")
        bounds[name] = _positive(text, value) / 1000
    return Objectives(bounds)


def _positive(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not number > 0:
        raise ConfigurationError(f"goodput objective {text!r} needs a number of milliseconds above 0")
    return number
