import pytest

from atomesh.cli import core_shares
from atomesh.cli.core_shares import parse_cpu_max, share_cores
from atomesh.errors import ConfigurationError


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [
        ([0, 1, 2, 3], 1, [(0, 1, 2, 3)]),
        ([0, 1, 2, 3], 2, [(0, 1), (2, 3)]),
        ([0, 1, 4, 5, 6], 2, [(0, 1), (4, 5, 6)]),
        ([3, 5], 2, [(3,), (5,)]),
        ([3, 5], 5, [(3,), (5,), (3,), (5,), (3,)]),
        ([0], 1, [(0,)]),
    ],
)
def test_cores_are_shared_out(cores: list[int], workers: int, expected: list[tuple[int, ...]]) -> None:
    assert share_cores(cores, workers) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("200000 100000\n", 2.0), ("150000 100000", 1.5), ("max 100000\n", None), ("", None), ("1 0", None)],
)
def test_a_cgroup_quota_is_read(text: str, expected: float | None) -> None:
    assert parse_cpu_max(text) == expected


def test_threads_are_as_many_as_there_are_cores_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_shares, "usable_cores", lambda: (0, 1))
    for threads in (None, 1, 2):
        core_shares.check_threads(threads)
    for threads in (0, -1, 3):
        with pytest.raises(ConfigurationError, match=f"--threads is {threads}; .* between 1 and 2"):
            core_shares.check_threads(threads)


def test_a_core_is_one_that_this_process_may_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 8, 10, 11}, raising=False)
    core_shares.check_cores(())
    core_shares.check_cores((8, 11))
    for core in (3, -1, 12):
        with pytest.raises(ConfigurationError, match=f"--cores is {core}; it must be one of 0-2, 8, 10-11$"):
            core_shares.check_cores((0, core))
