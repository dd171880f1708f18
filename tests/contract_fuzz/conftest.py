"""A real server with a tiny model, small in every way: many requests come to it, and strange ones."""

from collections.abc import Iterator

import pytest

from atomesh.testing.pd_bench import UNIFIED, PDBench, pd_bench
from atomesh.testing.tiny_model import write_tiny_model

MAX_MODEL_LEN = 128  # so that an answer without a limit of its own is short


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PDBench]:
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    flags = [f"--max-model-len={MAX_MODEL_LEN}"]
    with pd_bench(model, tmp_path_factory.mktemp("home"), UNIFIED, flags) as made:
        yield made


@pytest.fixture(autouse=True)
def whole_afterwards(bench: PDBench) -> Iterator[None]:
    yield
    bench.check()
