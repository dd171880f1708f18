"""Other engines are told the grammar, or the request is refused: an answer is never free unasked."""

from typing import Any

import pytest

from atomesh.errors import EngineError, InvalidRequestError
from atomesh.mesh.backends.sglang_wire import generate_body
from atomesh.mesh.backends.vllm_wire import continued, prefill_body, whole_body
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.grammar import GrammarKind, GrammarSpec
from atomesh.protocol.sampling import SamplingSpec

SCHEMA = '{"type":"object"}'


def asking(kind: GrammarKind, source: str, begins_after: tuple[int, ...] = ()) -> GenerationRequest:
    grammar = GrammarSpec(kind=kind, source=source, begins_after=begins_after)
    sampling = SamplingSpec(seed=1, max_tokens=8, grammar=grammar)
    return GenerationRequest(request_id="r", prompt_token_ids=[1, 2], sampling=sampling)


@pytest.mark.parametrize(
    ("request_", "vllm", "sglang"),
    [
        (asking("json_schema", SCHEMA), {"json": {"type": "object"}}, {"json_schema": SCHEMA}),
        (asking("regex", "a+"), {"regex": "a+"}, {"regex": "a+"}),
    ],
    ids=["schema", "regex"],
)
def test_it_is_told(request_: GenerationRequest, vllm: dict[str, Any], sglang: dict[str, Any]) -> None:
    told = {**vllm, "disable_any_whitespace": True}
    whole = whole_body(request_, "m")
    assert whole["structured_outputs"] == told
    assert prefill_body(whole)["structured_outputs"] == told
    assert sglang.items() <= generate_body(request_)["sampling_params"].items()


@pytest.mark.parametrize(
    "request_", [asking("lark", 'start: "a"'), asking("regex", "a", (7,))], ids=["lark", "reasoning"]
)
def test_what_it_does_not_know_is_refused(request_: GenerationRequest) -> None:
    with pytest.raises(InvalidRequestError, match="not taken by this model's engine"):
        whole_body(request_, "m")
    with pytest.raises(InvalidRequestError, match="not taken by this model's engine"):
        generate_body(request_)


def test_without_a_grammar_nothing_is_told() -> None:
    sampling = SamplingSpec(seed=1, max_tokens=8)
    request = GenerationRequest(request_id="r", prompt_token_ids=[1], sampling=sampling)
    assert "structured_outputs" not in whole_body(request, "m")
    assert not {"json_schema", "regex"} & generate_body(request)["sampling_params"].keys()


def test_a_bound_answer_is_begun_but_not_gone_on_with() -> None:
    request = asking("regex", "a+")
    assert continued(request, 0, []).sampling.grammar == request.sampling.grammar
    with pytest.raises(EngineError, match="cannot go on"):
        continued(request, 0, [5])
