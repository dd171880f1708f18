import pytest

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.engine.roles import chunk_budget
from atomesh.protocol.worker import PRESETS, Role, RoleWeights


def limits(budget: int = 512, seqs: int = 64) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=1024, block_size=32, num_blocks=64
    )


@pytest.mark.parametrize(("role", "expected"), [("prefill", 512), ("unified", 512), ("decode", 128)])
def test_a_role_decides_how_long_chunks_are(role: Role, expected: int) -> None:
    assert chunk_budget(PRESETS[role], limits()) == expected


def test_between_two_roles_lie_all_the_others() -> None:
    assert chunk_budget(RoleWeights(prefill=0.5, decode=1.0), limits()) == 320


def test_every_sequence_can_step_at_once_and_no_step_exceeds_what_was_asked() -> None:
    decode = PRESETS["decode"]
    assert chunk_budget(decode, limits(seqs=300)) == 300
    assert chunk_budget(decode, limits(budget=100, seqs=1)) == 32
    assert chunk_budget(decode, limits(budget=200, seqs=300)) == 200
    assert chunk_budget(RoleWeights(prefill=7.0), limits()) == 512
