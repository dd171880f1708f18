"""The search for the highest load."""

import pytest

from atomesh.planner.simulator.find_load import HIGHEST, find_max_load


@pytest.mark.parametrize("truth", [0.06, 0.48, 0.999, 1.0, 1.27, 3.9])
def test_finds_the_last_load_that_is_kept(truth: float) -> None:
    tried: list[float] = []

    def keeps(load: float) -> bool:
        tried.append(load)
        return load <= truth

    found = find_max_load(keeps, resolution=0.01)

    assert truth - 0.01 <= found <= truth
    assert len(tried) <= 16
    assert len(set(tried)) == len(tried)


@pytest.mark.parametrize("truth", [1.196, 1.2, 1.204, 1.23])
def test_a_good_guess_takes_few_tries(truth: float) -> None:
    tried: list[float] = []

    def keeps(load: float) -> bool:
        tried.append(load)
        return load <= truth

    found = find_max_load(keeps, resolution=0.005, guess=1.2, step=0.02)

    assert truth - 0.005 <= found <= truth
    assert len(tried) <= 6
    assert len(set(tried)) == len(tried)


def test_knows_when_nothing_or_everything_is_kept() -> None:
    assert find_max_load(lambda load: False) == 0.0
    assert find_max_load(lambda load: True) == HIGHEST
    assert find_max_load(lambda load: True, guess=99.0) == HIGHEST
