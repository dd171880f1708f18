from pathlib import Path

import pytest

from atomesh.cli.access_flags import ACCESS_DEFAULTS
from atomesh.cli.flags import ENGINE_DEFAULTS, GATEWAY_DEFAULTS, PROCESS_DEFAULTS
from atomesh.cli.pools import choose_pools
from atomesh.cli.serve import _Flags, _workers
from atomesh.cli.worker import worker

FLAGS = _Flags(None, (), (), ENGINE_DEFAULTS, GATEWAY_DEFAULTS, ACCESS_DEFAULTS, PROCESS_DEFAULTS, "shm")


@pytest.mark.parametrize(
    ("prefill", "decode", "unified", "sharers"),
    [(1, 1, None, "2"), (1, 2, None, "3"), (None, None, 4, "4"), (None, None, 1, "1")],
)
def test_workers_that_start_together_are_told_how_many_share_the_memory(
    prefill: int | None, decode: int | None, unified: int | None, sharers: str
) -> None:
    pools = choose_pools(prefill, decode, unified, can_hand_over=True)
    specs = _workers(FLAGS, pools, Path("/sockets"))
    assert len(specs) == int(sharers)
    for spec in specs:
        told = dict(word.removeprefix("--").split("=", 1) for word in spec.words if word.startswith("--"))
        assert told.get("memory-sharers", "1") == sharers


def test_worker_takes_that_word() -> None:
    assert worker.__kwdefaults__["memory_sharers"] == 1
