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

    `can_hand_over`: whether workers here can move KV to each other; else one unified worker is the default.
    Raises ConfigurationError when nobody would prefill, or nobody decode.
    """
    if prefill is None and decode is None and unified is None:
        return PAIR if can_hand_over else ALONE
    half = 0 if unified else 1
    if prefill is None:
        prefill = half if decode else 0
    if decode is None:
        decode = half if prefill else 0
    pools = Pools(prefill, decode, unified or 0)
    _check(pools)
    return pools


def _check(pools: Pools) -> None:
    asked = f"--prefill {pools.prefill} --decode {pools.decode} --unified {pools.unified}"
    if min(pools.prefill, pools.decode, pools.unified) < 0 or pools.total > MAX_WORKERS:
        raise ConfigurationError(f"{asked}: none may be negative, all together at most {MAX_WORKERS}")
    if not pools.unified and not (pools.prefill and pools.decode):
        missing = "decode" if pools.prefill else "prefill"
        raise ConfigurationError(
            f"{asked} leaves nobody to {missing}: ask for one worker of each, or a unified one"
        )
