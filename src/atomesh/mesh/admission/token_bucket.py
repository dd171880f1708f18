"""A rate limit per minute: a bucket that fills steadily, and may be overdrawn by what is only known later."""

PERIOD_S = 60.0


class TokenBucket:
    """Full at first. `limit` is both what it holds and what it gains in a minute; `now` is in seconds."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._filled_at = now

    def level(self, now: float) -> float:
        """Negative while in debt."""
        gained = max(0.0, now - self._filled_at) * self.limit / PERIOD_S
        return min(float(self.limit), self._level + gained)

    def spend(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount
        self._filled_at = now

    def seconds_until(self, amount: float, now: float) -> float:
        """Until `amount`, or a full bucket where that is less, is there."""
        missing = min(amount, self.limit) - self.level(now)
        return max(0.0, missing * PERIOD_S / self.limit)

    def seconds_until_full(self, now: float) -> float:
        return self.seconds_until(self.limit, now)

    def resized(self, limit: int, now: float) -> "TokenBucket":
        """A bucket of another limit, from which as much is missing as from this one."""
        bucket = TokenBucket(limit, now)
        bucket.spend(self.limit - self.level(now), now)
        return bucket
