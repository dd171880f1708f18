import pytest

from atomesh.engine.roles import chunk_budget
from atomesh.protocol.worker import PRESETS, RoleWeights


@pytest.mark.parametrize(("role", "expected"), [("prefill", 512), ("unified", 512), ("decode", 128)])
def test_a_role_decides_how_long_chunks_are(role: str, expected: int) -> None:
    assert chunk_budget(PRESETS[role], most=512, floor=64) == expected


def test_between_two_roles_lie_all_the_others() -> None:
    assert chunk_budget(RoleWeights(prefill=0.5, decode=1.0), most=512, floor=64) == 320


def test_every_sequence_can_step_at_once_and_no_step_exceeds_what_was_asked() -> None:
    decode = PRESETS["decode"]
    assert chunk_budget(decode, most=512, floor=300) == 300
    assert chunk_budget(decode, most=200, floor=300) == 200
    assert chunk_budget(RoleWeights(prefill=7.0), most=512, floor=64) == 512
