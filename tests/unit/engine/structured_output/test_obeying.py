"""An engine obeys grammars: alone and among others, preempted, forked, after a failed step."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_engine
from atomesh.engine.core.batch import ScheduledBatch, StepResult
from atomesh.engine.engine import Engine
from atomesh.engine.execution.local_executor import LocalExecutor
from atomesh.engine.options import EngineOptions
from atomesh.engine.structured_output.grammars import GrammarCache
from atomesh.errors import InvalidRequestError, UnsupportedFeatureError
from atomesh.frontend.structured_output.model_vocabulary import load_vocabulary
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.grammar import GrammarKind, GrammarSpec
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.tiny_model import write_tiny_model
from atomesh.testing.tiny_tokenizer import EOS_TOKEN_ID

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
Told = dict[int, tuple[list[int], str | None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), vocab_size=400)  # padded: 384 have a meaning


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(model))


def built(model: Path, **options: Any) -> Engine:
    checkpoint = open_checkpoint(model)
    settled = EngineOptions(**{"dtype": "float32", "kv_memory": 2**21, "threads": 1, **options})
    engine = build_engine(checkpoint, settled, secret=b"s" * 32, served_name="tiny", clock=MonotonicClock())
    engine.obey_grammars(GrammarCache(lambda: load_vocabulary(checkpoint)))
    return engine


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    made = built(model)
    yield made
    made.close()


def asking(
    source: Any, kind: GrammarKind = "json_schema", *, request_id: str = "r", n: int = 1, **fields: Any
) -> GenerationRequest:
    grammar = GrammarSpec(kind=kind, source=source if isinstance(source, str) else json.dumps(source))
    told = {"seed": 7, "max_tokens": 120, "eos_token_ids": (EOS_TOKEN_ID,), "grammar": grammar, **fields}
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=[5, 6, 7], sampling=SamplingSpec(**told), n=n
    )


def run(engine: Engine, *requests: GenerationRequest) -> dict[str, Told]:
    found: dict[str, Told] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for delta in engine.step():
            assert delta.error is None
            choices = found.setdefault(delta.request_id, {})
            ids, reason = choices.get(delta.choice, ([], None))
            choices[delta.choice] = (ids + delta.token_ids, delta.finish_reason or reason)
    engine.check_invariants()
    return found


def assert_obeys(tokenizer: Tokenizer, told: Told) -> None:
    for ids, reason in told.values():
        assert reason == "stop"
        assert max(ids) < 384
        jsonschema.validate(json.loads(tokenizer.decode(ids, skip_special_tokens=True)), SCHEMA)


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"n": 3}, {"eos_token_ids": ()}])
def test_a_schema_is_obeyed(engine: Engine, tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    bounded = {**SCHEMA, "properties": {**SCHEMA["properties"], "age": {"enum": [1, 22, 333]}}}
    told = run(engine, asking(bounded, **fields))["r"]
    assert len(told) == fields.get("n", 1)
    assert_obeys(tokenizer, told)


def test_json_has_no_idle_white_space(engine: Engine, tokenizer: Tokenizer) -> None:
    told = run(engine, asking({"const": {"a": [1, {"b": None}], "c": "d e"}}))["r"]
    assert tokenizer.decode(told[0][0]) == '{"a": [1, {"b": null}], "c": "d e"}'


def test_neighbours_are_not_touched_and_do_not_touch(engine: Engine) -> None:
    free = GenerationRequest(
        request_id="free",
        prompt_token_ids=[5, 6, 7],
        sampling=SamplingSpec(seed=7, max_tokens=60, temperature=1.0),
        n=2,
    )
    bound = asking("[a-f]{30}", "regex", request_id="bound", n=2)
    alone = {**run(engine, free), **run(engine, bound)}
    for order in ((free, bound), (bound, free)):
        together = run(engine, *order, asking(SCHEMA))
        assert {name: together[name] for name in alone} == alone


def test_preempted_answers_are_the_same(model: Path, engine: Engine, tokenizer: Tokenizer) -> None:
    requests = [asking("([a-f]{2}-){28}", "regex", request_id=str(i), n=2, seed=i) for i in range(4)]
    wanted = run(engine, *requests)
    small = built(model, kv_memory=8 * 2**14, max_model_len=128)
    try:
        assert run(small, *requests) == wanted
        assert small.load().preemptions > 0
    finally:
        small.close()
    for told in wanted.values():
        for ids, _ in told.values():
            assert re.fullmatch("([a-f]{2}-){28}", tokenizer.decode(ids))


class Stumbling:
    """Fails every other batch once it is computed: its sequences are executed again, one by one."""

    def __init__(self, inner: LocalExecutor) -> None:
        self.inner = inner
        self.failures = 0

    def execute(self, batch: ScheduledBatch) -> StepResult:
        result = self.inner.execute(batch)
        if len(batch.sequences) > 1:
            self.failures += 1
            raise RuntimeError("it stumbled")
        return result

    def close(self) -> None:
        self.inner.close()


def test_a_step_that_is_taken_again_counts_its_tokens_once(model: Path, tokenizer: Tokenizer) -> None:
    engine = built(model)
    try:
        requests = [asking(SCHEMA, request_id=str(seed), seed=seed) for seed in range(2)]
        wanted = run(engine, *requests)
        stumbling = Stumbling(engine._executor)  # type: ignore[arg-type]
        engine._executor = stumbling
        assert run(engine, *requests) == wanted
        assert stumbling.failures > 10
    finally:
        engine.close()


def test_what_cannot_be_obeyed_is_refused_before_it_runs(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="keywords 'not' are not supported"):
        engine.add(asking({"not": {}}))
    assert not engine.has_work()


def test_an_engine_that_knows_no_tokens_takes_no_grammar(model: Path) -> None:
    options = EngineOptions(dtype="float32", kv_memory=2**20, threads=1)
    engine = build_engine(
        open_checkpoint(model), options, secret=b"s" * 32, served_name="tiny", clock=MonotonicClock()
    )
    try:
        with pytest.raises(UnsupportedFeatureError):
            engine.add(asking(SCHEMA))
    finally:
        engine.close()


def test_constraints_that_leave_nothing_end_that_request_alone(engine: Engine) -> None:
    engine.add(asking("[0-9]+", "regex", allowed_token_ids=(300,)))
    engine.add(asking("[a-f]{3}", "regex", request_id="other"))
    deltas = []
    while engine.has_work():
        deltas += engine.step()
    [failed] = [delta for delta in deltas if delta.error is not None]
    assert (failed.request_id, failed.finish_reason, failed.error.kind) == (
        "r",
        "error",
        "InvalidRequestError",
    )
    assert "its grammar" in failed.error.message
    assert [delta.finish_reason for delta in deltas if delta.request_id == "other"][-1] == "stop"
