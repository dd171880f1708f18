"""How this worker takes part in hand-offs."""

from dataclasses import dataclass

from atomesh.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RemoteKVConfig:
    """`incarnation` is this worker's own, `secret` the cluster's, which signs tickets. Leases in seconds.

    Without a secret there is no hand-off: every ticket is refused.

    A grant lapses after `grant_lease_s` without progress, KV that is kept for a later pull, or that was
    transferred and not called for, after `offer_lease_s`. Grants together never hold more than the pool less
    `watermark`, a fraction. `max_tickets` are remembered, so that none is good twice.
    """

    secret: bytes
    incarnation: str
    grant_lease_s: float = 10.0
    offer_lease_s: float = 30.0
    watermark: float = 0.1
    max_tickets: int = 16_384

    def __post_init__(self) -> None:
        for name in ("grant_lease_s", "offer_lease_s", "max_tickets"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be more than 0")
        if not 0 <= self.watermark < 1:
            raise ConfigurationError(f"watermark is {self.watermark}; it must lie in [0, 1)")


OFF = RemoteKVConfig(secret=b"", incarnation="")
