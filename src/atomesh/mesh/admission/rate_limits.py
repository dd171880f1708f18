"""One tenant's limits per minute: requests are counted at the door, prompts when they are known, answers as
they come."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

from atomesh.errors import RateLimitError
from atomesh.mesh.admission.tenant import Tenant
from atomesh.mesh.admission.token_bucket import TokenBucket

Unit = Literal["requests", "tokens"]


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a limit; `reset_s` until all of it is back."""

    limit: int
    remaining: int
    reset_s: float


class RateLimits:
    def __init__(self, tenant: Tenant, now: float) -> None:
        self._buckets: dict[Unit, TokenBucket] = {
            unit: TokenBucket(limit, now) for unit, limit in _limits(tenant).items()
        }

    def adopt(self, tenant: Tenant, now: float) -> None:
        """The tenant's limits have changed; what was used stays used."""
        old = self._buckets
        self._buckets = {
            unit: old[unit].resized(limit, now) if unit in old else TokenBucket(limit, now)
            for unit, limit in _limits(tenant).items()
        }

    def take_request(self, now: float) -> None:
        """Count one request. Raises RateLimitError, and counts nothing, when none is left."""
        self._check("requests", 1, now)
        self._spend("requests", 1, now)

    def check_prompt(self, tokens: int, now: float) -> None:
        """Raises RateLimitError when a prompt of so many tokens cannot be taken now.

        One longer than the whole limit is taken when nothing else has been for a minute.
        """
        self._check("tokens", tokens, now)

    def spend_tokens(self, tokens: int, now: float) -> None:
        self._spend("tokens", tokens, now)

    def allowances(self, now: float) -> Mapping[Unit, Allowance]:
        return {
            unit: Allowance(bucket.limit, max(0, floor(bucket.level(now))), bucket.seconds_until_full(now))
            for unit, bucket in self._buckets.items()
        }

    def _check(self, unit: Unit, amount: int, now: float) -> None:
        bucket = self._buckets.get(unit)
        wait_s = 0.0 if bucket is None else bucket.seconds_until(amount, now)
        if bucket is None or wait_s <= 0.0:
            return
        raise RateLimitError(
            f"this key's limit of {bucket.limit} {unit} per minute is used up; "
            f"try again in {ceil(wait_s)} s, or ask the operator for more",
            retry_after_s=ceil(wait_s),
        )

    def _spend(self, unit: Unit, amount: int, now: float) -> None:
        if (bucket := self._buckets.get(unit)) is not None:
            bucket.spend(amount, now)


def _limits(tenant: Tenant) -> dict[Unit, int]:
    asked: dict[Unit, int | None] = {
        "requests": tenant.requests_per_minute,
        "tokens": tenant.tokens_per_minute,
    }
    return {unit: limit for unit, limit in asked.items() if limit is not None}
