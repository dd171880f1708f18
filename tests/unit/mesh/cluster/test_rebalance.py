from msgspec.structs import replace as replaced

from atomesh.mesh.cluster.rebalance import (
    COOLDOWN_S,
    HOLD_S,
    Balance,
    Move,
    decode_pressure,
    look,
    prefill_pressure,
)
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.protocol.worker import LoadReport, Role
from atomesh.testing.mesh_snapshots import worker_description, worker_snapshot


def worker(name: str, role: Role, **fields: object) -> WorkerSnapshot:
    told = replaced(worker_description(name, role), max_num_seqs=10, max_num_batched_tokens=100)
    return worker_snapshot(name, role, description=told, **fields)


BUSY_PREFILL = [worker("p", "prefill", prefill_tokens=500), worker("d", "decode"), worker("e", "decode")]
BUSY_DECODE = [worker("p", "prefill"), worker("q", "prefill"), worker("d", "decode", decoding=9)]


def moves(workers: list[WorkerSnapshot], *times: float) -> list[Move]:
    balance, found = Balance(), []
    for now in times:
        balance, move = look(balance, workers, now)
        found += [] if move is None else [move]
    return found


def test_pressures() -> None:
    assert prefill_pressure([worker("p", "prefill", prefill_tokens=500), worker("q", "prefill")]) == 2.5
    assert decode_pressure([worker("d", "decode", decoding=9), worker("e", "decode", decoding=3)]) == 0.6
    load = LoadReport(total_blocks=10, free_blocks=1, cached_blocks=1)
    assert decode_pressure([worker("d", "decode", decoding=1, load=load)]) == 0.8
    assert (prefill_pressure([]), decode_pressure([])) == (0.0, 0.0)


def test_the_pool_at_ease_gives_its_idlest_worker_once_it_has_lasted() -> None:
    assert moves(BUSY_PREFILL, 0.0, HOLD_S - 0.1) == []
    assert moves(BUSY_PREFILL, 0.0, HOLD_S) == [Move("d", "d", "prefill", 5.0, 0.0)]
    assert moves(BUSY_DECODE, 0.0, HOLD_S) == [Move("p", "p", "decode", 0.0, 0.9)]


def test_not_again_for_a_while() -> None:
    times = [0.0, HOLD_S, COOLDOWN_S, HOLD_S + COOLDOWN_S - 0.1, HOLD_S + COOLDOWN_S]
    assert len(moves(BUSY_PREFILL, *times)) == 2
    assert len(moves(BUSY_PREFILL, *times[:4])) == 1


def test_a_moment_of_ease_begins_anew() -> None:
    balance, _ = look(Balance(), BUSY_PREFILL, 0.0)
    balance, _ = look(balance, [worker("p", "prefill"), *BUSY_PREFILL[1:]], 5.0)
    balance, move = look(balance, BUSY_PREFILL, HOLD_S)
    assert move is None
    assert look(balance, BUSY_PREFILL, 2 * HOLD_S)[1] is not None


def test_the_last_of_a_pool_stays_and_so_do_the_unified() -> None:
    assert moves([BUSY_PREFILL[0], BUSY_PREFILL[1], worker("u", "unified")], 0.0, HOLD_S) == []


def test_between_pressed_and_at_ease_nobody_moves() -> None:
    both = [*BUSY_PREFILL[:1], worker("d", "decode", decoding=5), worker("e", "decode", decoding=5)]
    assert moves(both, 0.0, HOLD_S, 2 * HOLD_S) == []
