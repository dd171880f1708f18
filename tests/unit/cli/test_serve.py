from pathlib import Path

import pytest

from atomesh.cli.access_flags import ACCESS_DEFAULTS
from atomesh.cli.flags import ENGINE_DEFAULTS, GATEWAY_DEFAULTS, PROCESS_DEFAULTS
from atomesh.cli.pools import choose_pools
from atomesh.cli.serve import GATEWAY_HEAD_START_S, _Flags, _workers
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


@pytest.mark.parametrize(("workers", "head_start_s"), [(2, 0.0), (3, GATEWAY_HEAD_START_S)])
def test_the_gateway_goes_first_where_workers_outnumber_the_cores(
    monkeypatch: pytest.MonkeyPatch, workers: int, head_start_s: float
) -> None:
    monkeypatch.setattr("atomesh.cli.serve.usable_cores", lambda: (0, 1))
    specs = _workers(FLAGS, choose_pools(None, None, workers, can_hand_over=True), Path("/sockets"))
    assert [spec.head_start_s for spec in specs] == [head_start_s] * workers


def test_worker_takes_that_word() -> None:
    assert worker.__kwdefaults__["memory_sharers"] == 1
