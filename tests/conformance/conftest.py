"""The tiny random model behind `atomesh serve`: on one worker, in full also on one for each role."""

from collections.abc import Iterator

import pytest

from atomesh.testing.pd_bench import ONE_AND_ONE, UNIFIED, PDBench, Shape, pd_bench
from atomesh.testing.tiny_model import write_tiny_model

SHAPES = [
    pytest.param(UNIFIED, id=UNIFIED.name),
    pytest.param(ONE_AND_ONE, id=ONE_AND_ONE.name, marks=pytest.mark.soak),
]


@pytest.fixture(scope="module", params=SHAPES)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PDBench]:
    shape: Shape = request.param
    folder = tmp_path_factory.mktemp("conformance")
    model = write_tiny_model(folder / "tiny")
    with pd_bench(model, folder, shape) as bench:
        yield bench
