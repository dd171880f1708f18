import json
from pathlib import Path

import pytest

from atomesh.frontend.sampling_defaults import NO_DEFAULTS, SamplingDefaults, read_sampling_defaults
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.tiny_model import write_tiny_gguf, write_tiny_model


def read(directory: Path, **told: object) -> SamplingDefaults:
    model = write_tiny_model(directory / "model")
    (model / "generation_config.json").write_text(json.dumps(told))
    return read_sampling_defaults(open_checkpoint(model))


def test_what_the_model_says_is_read(tmp_path: Path) -> None:
    told = read(tmp_path, temperature=0.6, top_p=None, top_k=20, do_sample=True)
    assert told == SamplingDefaults(temperature=0.6, top_k=20)


def test_what_is_out_of_range_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(tmp_path, temperature=-1, top_p=0.5, top_k="many") == SamplingDefaults(top_p=0.5)
    assert "temperature is -1" in caplog.text
    assert "top_k" in caplog.text


def test_a_model_that_says_nothing_has_no_defaults(tmp_path: Path) -> None:
    assert read_sampling_defaults(open_checkpoint(write_tiny_model(tmp_path / "model"))) == NO_DEFAULTS
    assert read_sampling_defaults(open_checkpoint(write_tiny_gguf(tmp_path / "model.gguf"))) == NO_DEFAULTS
