"""Why a request went where it went: every candidate with each of its terms, in seconds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from atomesh.mesh.placement.placement import Placement


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve the request. `terms` sum to `total_s`; `decode` is None where one worker does it all.

    `cached_tokens` are those of the prompt that the prefill worker is believed to hold.
    """

    prefill: str
    decode: str | None
    terms: Mapping[str, float]
    total_s: float
    cached_tokens: int = 0
    fetch_from: str | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """`ttft_s`: from the decision to the first token; `transfer_s`: what decode then waits for KV."""

    cached_tokens: int
    ttft_s: float
    transfer_s: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """`candidates` are ordered, the cheapest first; the chosen one need not be that under every policy."""

    policy: str
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    predicted: Predicted
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def runner_up(self) -> Candidate | None:
        return next((one for one in self.candidates if one is not self.chosen), None)


@dataclass(frozen=True, slots=True)
class Decision:
    placement: Placement
    _explain: Callable[[], Explanation]

    @property
    def explanation(self) -> Explanation:
        """Made when it is asked for, each time: most decisions are never explained."""
        return self._explain()
