"""Between which values the numbers of a request lie: one table for whoever checks them and whoever tells."""

from collections.abc import Mapping
from dataclasses import dataclass

from atomesh.errors import InvalidRequestError

MAX_CHOICES = 128
MAX_LOGPROBS = 20
LARGEST_FLOAT = 1.7976931348623157e308
LARGEST_INT32 = 2**31 - 1
SEED_RANGE = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Bound:
    """`high` is inside, and `low` too unless `is_above_low`."""

    low: float
    high: float
    is_above_low: bool = False

    def check(self, name: str, value: float) -> None:
        """Raises InvalidRequestError with the name, the value and what it may be; NaN is outside."""
        inside = self.low < value <= self.high if self.is_above_low else self.low <= value <= self.high
        if not inside:
            raise InvalidRequestError(f"{name} is {value}; it must {self._words()}", param=name)

    def _words(self) -> str:
        if self.high == LARGEST_FLOAT:
            return f"be a finite number above {self.low:g}"
        return f"lie in {'(' if self.is_above_low else '['}{self.low}, {self.high}]"


BOUNDS: Mapping[str, Bound] = {
    "n": Bound(1, MAX_CHOICES),
    "temperature": Bound(0.0, 2.0),
    "top_p": Bound(0.0, 1.0, is_above_low=True),
    "top_k": Bound(-1, LARGEST_INT32),
    "min_p": Bound(0.0, 1.0),
    "presence_penalty": Bound(-2.0, 2.0),
    "frequency_penalty": Bound(-2.0, 2.0),
    "repetition_penalty": Bound(0.0, LARGEST_FLOAT, is_above_low=True),
    "seed": Bound(*SEED_RANGE),
    "max_tokens": Bound(0, LARGEST_INT32),
    "min_tokens": Bound(0, LARGEST_INT32),
    "logprobs": Bound(0, MAX_LOGPROBS),
    "prompt_logprobs": Bound(0, MAX_LOGPROBS),
}
TOP_LOGPROBS = Bound(0, MAX_LOGPROBS)
COMPLETION_LOGPROBS = Bound(0, 5)
