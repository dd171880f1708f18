"""How this worker takes part in hand-offs, and the one rule behind how long it waits for another.

Everything is a share of the lease (`--kv-lease`), and everything is renewed by progress:

    offer   all of it     KV that waits for a pull, or that has come and is not called for;
                          renewed while decode queues the request, until the ticket is over
    grant   a third       a peer that still computes, or has not begun to push: engines listen between two
                          steps; renewed by what it says and by what it brings
    stall   a fifteenth   once blocks are on their way: a push ends in that time and the time of all bytes
                          before it over a slow link, or has failed; a decode leg that has seen the first
                          of its blocks waits as long for the next, and then computes its prompt; both have
                          as long again while bytes get through, be it slowly
"""

from dataclasses import dataclass

from atomesh.errors import ConfigurationError

MAX_LEASE_S = 86_400.0
RENEWALS_PER_LEASE = 3
SLOWEST_LINK = 32 * 2**20  # bytes a second; of a slower one the transport says that bytes get through


@dataclass(frozen=True, slots=True)
class RemoteKVConfig:
    """`incarnation` is this worker's own, `secret` the cluster's, which signs tickets. `lease_s` in seconds.

    Without a secret there is no hand-off: every ticket is refused.

    Grants together never hold more than the pool less `watermark`, a fraction. `max_tickets` are remembered,
    so that none is good twice.
    """

    secret: bytes
    incarnation: str
    lease_s: float = 30.0
    block_bytes: int = 0
    watermark: float = 0.1
    max_tickets: int = 16_384

    def __post_init__(self) -> None:
        if not 0 < self.lease_s <= MAX_LEASE_S:
            raise ConfigurationError(f"lease_s is {self.lease_s}; it must lie in (0, {MAX_LEASE_S:.0f}]")
        if not self.max_tickets > 0:
            raise ConfigurationError(f"max_tickets is {self.max_tickets}; it must be more than 0")
        if not 0 <= self.watermark < 1:
            raise ConfigurationError(f"watermark is {self.watermark}; it must lie in [0, 1)")

    @property
    def offer_lease_s(self) -> float:
        return self.lease_s

    @property
    def grant_lease_s(self) -> float:
        return self.lease_s / 3

    def stall_s(self, num_blocks: int) -> float:
        """Within which the next of `num_blocks` blocks that are on their way has to be there."""
        return self.lease_s / 15 + num_blocks * self.block_bytes / SLOWEST_LINK


OFF = RemoteKVConfig(secret=b"", incarnation="")
