import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_engine
from atomesh.engine.engine import Engine
from atomesh.engine.options import EngineOptions
from atomesh.errors import ConfigurationError, ModelFileError
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.tiny_model import tiny_config, write_tiny_gguf, write_tiny_model

BLOCK_BYTES = 2 * 2 * 2 * 32 * 16 * 4  # layers, keys and values, heads, tokens, elements, bytes
Build = Callable[[Path, EngineOptions], Engine]


@pytest.fixture
def build() -> Iterator[Build]:
    built: list[Engine] = []

    def make(path: Path, options: EngineOptions) -> Engine:
        engine = build_engine(
            open_checkpoint(path), options, secret=b"s" * 32, served_name="tiny", clock=MonotonicClock()
        )
        built.append(engine)
        return engine

    yield make
    for engine in built:
        engine.close()


def answer(engine: Engine, prompt: list[int], max_tokens: int = 8) -> list[int]:
    sampling = SamplingSpec(seed=0, max_tokens=max_tokens, temperature=0.0)
    engine.add(GenerationRequest(request_id="one", prompt_token_ids=prompt, sampling=sampling))
    token_ids: list[int] = []
    while engine.has_work():
        for delta in engine.step():
            assert delta.error is None
            token_ids += delta.token_ids
    return token_ids


def test_describes_the_model_as_served(tmp_path: Path, build: Build) -> None:
    path = write_tiny_model(tmp_path / "model")
    description = build(path, EngineOptions(kv_memory=40 * BLOCK_BYTES, dtype="float32")).description
    assert description.name == "tiny"
    assert description.path == str(path)
    assert description.dtype == "float32"
    assert description.vocab_size == tiny_config()["vocab_size"]
    assert (description.block_size, description.num_blocks, description.max_model_len) == (32, 40, 1024)
    assert description.eos_token_ids == (tiny_config()["eos_token_id"],)


def test_a_context_cut_by_the_pool_is_told(
    tmp_path: Path, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        engine = build(write_tiny_model(tmp_path), EngineOptions(kv_memory=3 * BLOCK_BYTES, dtype="float32"))
    assert engine.description.max_model_len == 96
    assert "max_model_len is 96 tokens" in caplog.text
    assert "1024" in caplog.text


def test_an_asked_context_that_does_not_fit_is_refused(tmp_path: Path, build: Build) -> None:
    options = EngineOptions(kv_memory=3 * BLOCK_BYTES, max_model_len=97, dtype="float32")
    with pytest.raises(ConfigurationError, match="lower max_model_len or raise kv_memory"):
        build(write_tiny_model(tmp_path), options)


def test_whole_prompts_need_no_larger_budget(tmp_path: Path, build: Build) -> None:
    options = EngineOptions(
        kv_memory=40 * BLOCK_BYTES, enable_chunked_prefill=False, max_num_batched_tokens=8, dtype="float32"
    )
    assert len(answer(build(write_tiny_model(tmp_path), options), list(range(3, 103)))) == 8


def test_a_gguf_file_answers_as_its_directory_does(tmp_path: Path, build: Build) -> None:
    options = EngineOptions(kv_memory=40 * BLOCK_BYTES, dtype="float32")
    prompt = list(range(3, 53))
    directory = build(write_tiny_model(tmp_path / "model", seed=4), options)
    file = build(write_tiny_gguf(tmp_path / "model.gguf", seed=4), options)
    assert answer(file, prompt) == answer(directory, prompt)


def test_bfloat16_engines_answer(tmp_path: Path, build: Build) -> None:
    engine = build(write_tiny_model(tmp_path, "gemma3"), EngineOptions(kv_memory=2**20, dtype="bfloat16"))
    assert engine.description.dtype == "bfloat16"
    assert len(answer(engine, list(range(3, 83)))) == 8


def test_weights_of_another_architecture_are_refused(tmp_path: Path, build: Build) -> None:
    path = write_tiny_model(tmp_path, "qwen3")
    config = path / "config.json"
    config.write_text(config.read_text().replace('"qwen3"', '"llama"'))
    with pytest.raises(ModelFileError, match="do not belong together"):
        build(path, EngineOptions(kv_memory=2**20))


def test_threads_are_set_when_asked(tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    path = write_tiny_model(tmp_path)
    build(path, EngineOptions(kv_memory=2**20))
    build(path, EngineOptions(kv_memory=2**20, threads=3))
    assert asked == [3]
