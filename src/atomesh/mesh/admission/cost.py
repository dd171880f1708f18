"""What a request costs the workers: seconds of a worker's time, at the speed that was measured of them.

    cost = C(n, m) + Σ over generated tokens of (a share of the step + context read) + P · (KV byte-seconds)

C(n, m) is what computing a prompt of n tokens takes of which m were cached. KV byte-seconds are what the
request held of a worker's KV pool, integrated over the time from its turn to its end; P prices a second of
the whole pool as KV_POOL seconds of its worker. Fairness charges this and nothing else: not requests, and
not what somebody asked for but did not get.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.costs import PRIOR_STEP, Costs, StepCosts
from atomesh.protocol.generation import TokenDelta

KV_POOL = 0.125
PRIOR_BATCH = 16  # sequences that share a step, as long as there is no worker


@dataclass(frozen=True, slots=True)
class Tariff:
    """Seconds for each computed prompt token, for each of its n² − m², for each generated token, for each
    token that such a one attends to, and for a second that a token's KV is held."""

    token_s: float
    quadratic_s: float
    output_token_s: float
    context_s: float
    kv_token_s: float = 0.0

    @property
    def is_finite(self) -> bool:
        prices = (self.token_s, self.quadratic_s, self.output_token_s, self.context_s, self.kv_token_s)
        return all(map(isfinite, prices))

    def prompt_s(self, num_tokens: int, cached: int = 0) -> float:
        """C(n, m), with that share of its steps that its tokens fill."""
        more = num_tokens * num_tokens - cached * cached
        return self.token_s * (num_tokens - cached) + self.quadratic_s * more


def tariff_of(workers: Sequence[WorkerSnapshot], costs: Costs) -> Tariff:
    """The mean over those that prefill, and over those that decode, as busy as they are now."""
    if not workers:
        return PRIOR_TARIFF
    prefill = [costs.step(one.incarnation) for one in workers if one.weights.prefill]
    decode = [one for one in workers if one.weights.decode]
    return Tariff(
        *_prompt_prices(prefill or [costs.step(one.incarnation) for one in workers]),
        *_output_prices([(costs.step(one.incarnation), _batch(one)) for one in decode or workers]),
        kv_token_s=_mean(
            [KV_POOL / tokens if (tokens := _kv_tokens(one)) else 0.0 for one in decode or workers]
        ),
    )


def _prompt_prices(steps: Sequence[StepCosts]) -> tuple[float, float]:
    token_s = _mean([step.token_s + step.fixed_s / step.chunk_tokens for step in steps])
    return token_s, _mean([step.quadratic_s for step in steps])


def _output_prices(steps: Sequence[tuple[StepCosts, int]]) -> tuple[float, float]:
    """All that decode in a step pay the same share of what it takes whoever is in it."""
    output_token_s = _mean([step.sequence_s + step.fixed_s / batch for step, batch in steps])
    return output_token_s, _mean([step.context_s for step, _ in steps])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


PRIOR_TARIFF = Tariff(*_prompt_prices([PRIOR_STEP]), *_output_prices([(PRIOR_STEP, PRIOR_BATCH)]))


class CostMeter:
    """One admitted request's cost as it grows. The prompt is charged whole at first, and what turns out to
    have been cached is given back."""

    def __init__(self, prompt_tokens: int, now: float, tariff: Tariff) -> None:
        self._tariff = tariff
        self._prompt_tokens = prompt_tokens
        self._lengths: dict[int, int] = {}  # by choice: its prompt and what has been generated
        self._resident = prompt_tokens
        self._seen_at = now

    def start(self) -> float:
        """The cost to begin with."""
        return self._tariff.prompt_s(self._prompt_tokens)

    def take(self, deltas: Iterable[TokenDelta], now: float) -> float:
        """What has come on top with one step; negative when the prompt was cached."""
        tariff, cost = self._tariff, self._hold(now)
        for delta in deltas:
            if delta.cached_tokens:
                cost -= tariff.prompt_s(delta.cached_tokens)
            count = len(delta.token_ids)
            context = self._lengths.get(delta.choice, self._prompt_tokens)
            cost += (tariff.output_token_s + tariff.context_s * (context + 0.5 * (count + 1))) * count
            self._lengths[delta.choice] = context + count
            self._resident += count
        return cost

    def settle(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> float:
        """What has come on top of the start, of one answer whose counts are only known in the end; negative
        when less of the prompt was computed than was charged."""
        tariff = self._tariff
        prompt_s = tariff.prompt_s(prompt_tokens, cached_tokens) - self.start()
        context = prompt_tokens + 0.5 * (output_tokens + 1)
        return prompt_s + (tariff.output_token_s + tariff.context_s * context) * output_tokens

    def end(self, now: float) -> float:
        """The last of it."""
        return self._hold(now)

    def _hold(self, now: float) -> float:
        seconds, self._seen_at = now - self._seen_at, now
        return self._tariff.kv_token_s * seconds * self._resident


def _batch(worker: WorkerSnapshot) -> int:
    return max(1, worker.decoding, worker.load.running)


def _kv_tokens(worker: WorkerSnapshot) -> int:
    return 0 if worker.description is None else worker.description.model.kv_tokens
