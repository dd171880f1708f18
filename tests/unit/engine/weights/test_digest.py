from pathlib import Path

import pytest

from atomesh.engine.weights.digest import weights_digest
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.tiny_model import write_tiny_gguf, write_tiny_model


def test_copies_of_a_model_have_one_digest(tmp_path: Path) -> None:
    digests = {
        weights_digest(open_checkpoint(write_tiny_model(tmp_path / name, seed=3))) for name in ("a", "b")
    }
    [digest] = digests
    assert len(bytes.fromhex(digest)) == 16


@pytest.mark.parametrize(
    "other", [{"seed": 4}, {"family": "qwen3"}, {"rope_theta": 20_000.0}, {"rms_norm_eps": 1e-6}]
)
def test_other_weights_and_other_use_of_the_same_weights_differ(
    tmp_path: Path, other: dict[str, object]
) -> None:
    ours = write_tiny_model(tmp_path / "ours")
    theirs = write_tiny_model(tmp_path / "theirs", **other)
    assert weights_digest(open_checkpoint(ours)) != weights_digest(open_checkpoint(theirs))


def test_packed_otherwise_they_differ(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path))
    assert len({weights_digest(checkpoint, packed_as) for packed_as in (None, "int8", "int4")}) == 3


def test_one_bit_makes_another_digest(tmp_path: Path) -> None:
    ours, theirs = (write_tiny_gguf(tmp_path / f"{name}.gguf") for name in ("ours", "theirs"))
    damaged = bytearray(theirs.read_bytes())
    damaged[-5] ^= 1
    theirs.write_bytes(damaged)
    assert weights_digest(open_checkpoint(ours)) != weights_digest(open_checkpoint(theirs))
