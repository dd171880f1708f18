"""How many workers of which role `atomesh serve` runs."""

from dataclasses import dataclass

from atomesh.errors import ConfigurationError
from atomesh.protocol.worker import Role

MAX_WORKERS = 64


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place, whoever fills it after a restart."""

    worker_id: str
    role: Role


@dataclass(frozen=True, slots=True)
class Pools:
    """Numbers of workers."""

    prefill: int = 0
    decode: int = 0
    unified: int = 0

    @property
    def total(self) -> int:
        return self.prefill + self.decode + self.unified

    @property
    def seats(self) -> list[Seat]:
        """In the order in which they take their cores."""
        roles: tuple[tuple[Role, int], ...] = (
            ("prefill", self.prefill),
            ("decode", self.decode),
            ("unified", self.unified),
        )
        return [Seat(f"{role}-{index}", role) for role, count in roles for index in range(count)]


PAIR = Pools(prefill=1, decode=1)
ALONE = Pools(unified=1)


def choose_pools(
    prefill: int | None, decode: int | None, unified: int | None, *, can_hand_over: bool = True
) -> Pools:
    """None where the user said nothing: the other half of a pair is one worker, all the rest are none.

    `can_hand_over`: whether workers here can move KV to each other; else every worker is a unified one.
    Raises ConfigurationError when nobody would prefill, or nobody decode.
    """
    asked = {"prefill": prefill, "decode": decode, "unified": unified}
    if not any(count is not None for count in asked.values()):
        return PAIR if can_hand_over else ALONE
    half = 0 if unified else 1
    if prefill is None:
        prefill = half if decode else 0
    if decode is None:
        decode = half if prefill else 0
    pools = Pools(prefill, decode, unified or 0)
    _check(pools, " ".join(f"--{role} {count}" for role, count in asked.items() if count is not None))
    if not can_hand_over and pools.total > pools.unified:
        raise ConfigurationError(
            f"--prefill {prefill} --decode {decode}: KV on this device cannot be handed over yet; "
            f"write --unified {pools.total}, or --device cpu"
        )
    return pools


def _check(pools: Pools, asked: str) -> None:
    if min(pools.prefill, pools.decode, pools.unified) < 0:
        raise ConfigurationError(f"{asked}: no number of workers is negative; write 0 or more")
    if pools.total > MAX_WORKERS:
        raise ConfigurationError(
            f"{asked} makes {pools.total} workers; the most is {MAX_WORKERS}: ask for fewer"
        )
    lacking = [role for role, count in (("prefill", pools.prefill), ("decode", pools.decode)) if not count]
    if lacking and not pools.unified:
        remedy = " ".join(f"--{role} 1" for role in lacking)
        raise ConfigurationError(
            f"{asked} leaves nobody to {' or '.join(lacking)}: write {remedy}, or --unified 1"
        )
