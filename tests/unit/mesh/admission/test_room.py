import pytest
from msgspec.structs import replace

from atomesh.mesh.admission.room import has_room, total_sequences
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.protocol.worker import LoadReport, Role
from atomesh.testing.mesh_snapshots import worker_description, worker_snapshot

SEQUENCES, BUDGET = 4, 100  # block size 16, 256 blocks


def worker(
    name: str = "w", role: Role = "unified", load: LoadReport | None = None, **fields: int
) -> WorkerSnapshot:
    told = replace(worker_description(name, role), max_num_seqs=SEQUENCES, max_num_batched_tokens=BUDGET)
    load = load or LoadReport(free_blocks=256, total_blocks=256)
    return worker_snapshot(name, role, description=told, load=load, **fields)


def test_nobody_is_for_placement_to_refuse() -> None:
    assert has_room([], 10, 1)


def test_an_idle_worker_has_room_for_anything() -> None:
    assert has_room([worker(load=LoadReport(free_blocks=1, total_blocks=256))], 100_000, 128)


@pytest.mark.parametrize(
    ("sequences", "choices", "has"), [(3, 1, True), (4, 1, False), (2, 2, True), (3, 2, False)]
)
def test_a_batch_has_so_many_places(sequences: int, choices: int, has: bool) -> None:
    assert has_room([worker(sequences=sequences)], 10, choices) is has


def test_what_the_worker_reports_counts_if_it_is_more() -> None:
    busy = LoadReport(running=3, waiting=1, free_blocks=256, total_blocks=256)
    assert not has_room([worker(load=busy, sequences=1)], 10, 1)


@pytest.mark.parametrize(("prefill_tokens", "has"), [(199, True), (200, False)])
def test_two_steps_of_prompts_are_enough(prefill_tokens: int, has: bool) -> None:
    assert has_room([worker(sequences=1, prefill_tokens=prefill_tokens)], 10, 1) is has


@pytest.mark.parametrize(
    ("free", "cached", "prompt", "has"),
    [
        (4, 0, 48, True),  # three blocks and one to grow
        (3, 0, 48, False),
        (1, 3, 48, True),
        (4, 0, 49, False),
        (256, 0, 100_000, True),  # what can never fit is the worker's to refuse
        (255, 0, 100_000, False),
    ],
)
def test_its_kv_has_to_fit(free: int, cached: int, prompt: int, has: bool) -> None:
    load = LoadReport(running=1, free_blocks=free, cached_blocks=cached, total_blocks=256)
    assert has_room([worker(load=load)], prompt, 1) is has


def test_prompts_that_are_on_their_way_take_blocks_too() -> None:
    load = LoadReport(running=1, free_blocks=4, total_blocks=256)
    assert has_room([worker(load=load, prefill_tokens=16)], 32, 1)
    assert not has_room([worker(load=load, prefill_tokens=17)], 32, 1)


def test_where_an_engine_does_not_say_what_it_takes_its_own_line_does() -> None:
    unknown = worker_snapshot("w", load=LoadReport(running=100, waiting=3))
    assert has_room([unknown], 10_000, 10)
    assert not has_room([worker_snapshot("w", load=LoadReport(running=100, waiting=4))], 1, 1)
    just_arrived = LoadReport(running=1, waiting=2, free_blocks=256, total_blocks=256)
    assert has_room([worker(load=just_arrived)], 1, 1)  # who says so takes them all into its next step


def test_apart_both_must_have_room() -> None:
    prefill, decode = worker("p", "prefill"), worker("d", "decode")
    full_prefill = worker("p", "prefill", sequences=1, prefill_tokens=200)
    full_decode = worker("d", "decode", sequences=SEQUENCES)
    assert has_room([prefill, decode], 10, 1)
    assert not has_room([full_prefill, decode], 10, 1)
    assert not has_room([prefill, full_decode], 10, 1)
    assert has_room([full_prefill, worker("p2", "prefill"), full_decode, worker("d2", "decode")], 10, 1)


def test_sequences_are_those_of_who_decodes() -> None:
    assert total_sequences([worker("p", "prefill"), worker("d", "decode"), worker("u")]) == 2 * SEQUENCES
    assert total_sequences([worker("d", "decode"), worker_snapshot("x")]) is None
    assert total_sequences([]) is None
