import os

import pytest

from atomesh.cli import compute_share
from atomesh.cli.compute_share import claim_cores, set_thread_policy


def test_threads_sleep_soon_for_no_worker_has_its_cores_to_itself() -> None:
    environment: dict[str, str] = {}
    set_thread_policy(environment, 3)
    assert environment == {"OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "1000"}


@pytest.mark.parametrize("said", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_what_the_user_says_of_spinning_stays(said: dict[str, str]) -> None:
    environment = dict(said)
    set_thread_policy(environment, 1)
    assert environment == {**said, "OMP_NUM_THREADS": "1"}


def test_cores_niceness_and_width_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cores: taken.append(cores), raising=False)
    monkeypatch.setattr(os, "nice", taken.append)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(compute_share, "usable_cores", lambda: (0, 1, 2, 3))

    assert claim_cores((4, 5), None, niceness=5) == 2
    assert claim_cores((4, 5), 1) == 1
    assert claim_cores((), None) == 4
    assert taken == [(4, 5), 5, (4, 5)]
    assert os.environ["OMP_NUM_THREADS"] == "4"
