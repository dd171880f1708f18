"""What a request costs the workers, as measured, in units of one computed prompt token.

    cost = prompt_token · (n − m) + output_token · k + kv_pool_second · (KV byte-seconds / bytes of the pool)

n prompt tokens of which m were cached, k tokens generated over all choices; KV byte-seconds are what the
request held of a worker's KV pool, integrated over the time from its admission to its end. Fairness charges
this and nothing else: not requests, and not what somebody asked for but did not get.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from atomesh.protocol.generation import TokenDelta


@dataclass(frozen=True, slots=True)
class CostWeights:
    """An output token occupies a step's memory bandwidth where a prompt token adds to a step's arithmetic.

    `kv_pool_second` prices one second of a worker's whole KV pool.
    """

    prompt_token: float = 1.0
    output_token: float = 4.0
    kv_pool_second: float = 500.0


DEFAULT_WEIGHTS = CostWeights()


class CostMeter:
    """One admitted request's cost as it grows. The prompt is charged whole at first, and what turns out to
    have been cached is given back."""

    def __init__(self, prompt_tokens: int, kv_tokens: int, now: float, weights: CostWeights) -> None:
        """`kv_tokens` is the size of a worker's KV pool in tokens, 0 where nobody knows."""
        self._weights = weights
        self._resident = prompt_tokens
        self._kv_tokens = kv_tokens
        self._seen_at = now

    def start(self) -> float:
        """The cost to begin with."""
        return self._weights.prompt_token * self._resident

    def take(self, deltas: Iterable[TokenDelta], now: float) -> float:
        """What has come on top with one step; negative when the prompt was cached."""
        cost = self._hold(now)
        for delta in deltas:
            cost -= self._weights.prompt_token * (delta.cached_tokens or 0)
            cost += self._weights.output_token * len(delta.token_ids)
            self._resident += len(delta.token_ids)
        return cost

    def end(self, now: float) -> float:
        """The last of it."""
        return self._hold(now)

    def _hold(self, now: float) -> float:
        seconds, self._seen_at = now - self._seen_at, now
        if self._kv_tokens <= 0:
            return 0.0
        return self._weights.kv_pool_second * seconds * self._resident / self._kv_tokens
