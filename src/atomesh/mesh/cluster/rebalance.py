"""Whether a worker should change its role: from how busy the pools of prefill and decode are.

A pool's pressure is its use, from 0 to 1, and what waits for it, in units of what it can do at once. Roles
move one worker at a time, from the pool that is at ease to the one that is not, when the difference has
lasted for HOLD_S, and not again for COOLDOWN_S; each pool keeps one worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from atomesh.mesh.cluster.snapshot import WorkerSnapshot

Pool = Literal["prefill", "decode"]

PRESSED = 0.9
AT_EASE = 0.4
HOLD_S = 10.0
COOLDOWN_S = 60.0


@dataclass(frozen=True, slots=True)
class Move:
    """`address` should be given the role `to`; the pressures of the moment say why."""

    address: str
    worker_id: str
    to: Pool
    prefill_pressure: float
    decode_pressure: float


@dataclass(frozen=True, slots=True)
class Balance:
    """What is remembered between two looks: since when who wants a worker, and when one was last moved."""

    wanted_by: Pool | None = None
    since: float = 0.0
    moved_at: float | None = None


def look(balance: Balance, workers: Sequence[WorkerSnapshot], now: float) -> tuple[Balance, Move | None]:
    """`workers` are those of one model that are ready."""
    prefill = [one for one in workers if one.weights.prefill > 0.0 and one.weights.decode == 0.0]
    decode = [one for one in workers if one.weights.decode > 0.0 and one.weights.prefill == 0.0]
    pressures = (prefill_pressure(prefill), decode_pressure(decode))
    wanted = _wanted_by(*pressures)
    since = balance.since if wanted == balance.wanted_by else now
    balance = Balance(wanted, since, balance.moved_at)
    is_cooling = balance.moved_at is not None and now - balance.moved_at < COOLDOWN_S
    if wanted is None or is_cooling or now - since < HOLD_S:
        return balance, None
    givers = decode if wanted == "prefill" else prefill
    if len(givers) < 2:
        return balance, None
    giver = min(givers, key=lambda one: (one.in_flight, one.address))
    told = giver.description
    name = giver.address if told is None else told.worker_id
    return Balance(None, now, now), Move(giver.address, name, wanted, *pressures)


def prefill_pressure(workers: Sequence[WorkerSnapshot]) -> float:
    """Prompt tokens that wait, in steps of the pool; 0 where no worker says how much a step takes."""
    budget = sum(0 if one.description is None else one.description.max_num_batched_tokens for one in workers)
    return sum(one.prefill_tokens for one in workers) / budget if budget else 0.0


def decode_pressure(workers: Sequence[WorkerSnapshot]) -> float:
    """The fuller of batches and KV pools: sequences by what can run at once, blocks that are not free."""
    limit = sum(0 if one.description is None else one.description.max_num_seqs for one in workers)
    blocks = sum(one.load.total_blocks for one in workers)
    free = sum(one.load.free_blocks + one.load.cached_blocks for one in workers)
    batch = sum(one.decoding for one in workers) / limit if limit else 0.0
    return max(batch, (blocks - free) / blocks if blocks else 0.0)


def _wanted_by(prefill: float, decode: float) -> Pool | None:
    if prefill >= PRESSED and decode <= AT_EASE:
        return "prefill"
    if decode >= PRESSED and prefill <= AT_EASE:
        return "decode"
    return None
