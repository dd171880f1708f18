"""What came of one request."""

from dataclasses import dataclass
from itertools import pairwise

from atomesh.bench.completion_stream import Completion


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times in seconds on one monotonic clock; exactly one of `completion` and `failure` is there.

    `due_s` is when the request should have been sent; the difference to `started_s` is the load generator's
    own delay.
    """

    due_s: float
    started_s: float
    ended_s: float
    planned_input_tokens: int
    completion: Completion | None = None
    failure: Failure | None = None

    @property
    def start_lag_s(self) -> float:
        return max(self.started_s - self.due_s, 0.0)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The figures of one success, in seconds, defined as in vllm bench serve.

    `ttft`: sending to the first output chunk. `tpot`: (last − first) / (tokens − 1), None for a single token.
    `itl`: gaps between output chunks. `e2el`: sending to the last output or the finish reason.
    """

    ttft: float
    tpot: float | None
    itl: tuple[float, ...]
    e2el: float


def times_of(record: RequestRecord, completion: Completion) -> RequestTimes:
    chunks = completion.chunks
    tokens = completion.output_tokens
    return RequestTimes(
        ttft=completion.first_s - record.started_s,
        tpot=(completion.last_s - completion.first_s) / (tokens - 1) if tokens > 1 else None,
        itl=tuple(later.at_s - earlier.at_s for earlier, later in pairwise(chunks)),
        e2el=completion.last_s - record.started_s,
    )
