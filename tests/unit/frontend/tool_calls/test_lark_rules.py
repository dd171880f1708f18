"""What a model is held to is read back as calls that fit their schemas, in every dialect."""

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from atomesh.errors import InvalidRequestError
from atomesh.frontend.answer.whole_answer import WholeAnswer, parse_whole
from atomesh.frontend.tool_calls.lark_rules import calls_grammar
from atomesh.frontend.tool_calls.registry import DIALECTS, load_dialect
from atomesh.frontend.tool_calls.tool_call_parser import ToolCallParser
from atomesh.frontend.tool_calls.tools import ToolUse

TYPED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"], "type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "deep": {"$ref": "#/$defs/Point"},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["unit", "days"],
    "additionalProperties": False,
    "$defs": {
        "Point": {"type": "object", "properties": {"x": {"type": "null"}}, "additionalProperties": False}
    },
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = {"weather": TYPED, "time.now": NOTHING}
TOKENIZER = LLTokenizer("byte")

each = pytest.mark.parametrize("dialect", sorted(DIALECTS))


def random_answer(grammar: str, seed: int) -> str | None:
    """Bytes drawn among those allowed, letters and digits by preference; None when none has ended by then."""
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    rng = random.Random(seed)
    written = bytearray()
    while len(written) < 4_000:
        forced = matcher.compute_ff_tokens()
        if forced:
            matcher.consume_tokens(forced)
            written += bytes(forced)
            continue
        if matcher.is_accepting() and (matcher.is_stopped() or rng.random() < 0.5):
            return written.decode()
        bits = matcher.compute_bitmask()
        allowed = [i for i in range(128) if bits[i // 8] >> (i % 8) & 1]
        if not allowed:
            return written.decode() if matcher.is_accepting() else None
        closing = [i for i in allowed if i in b'"}])<,']
        token = rng.choice(closing if closing and rng.random() < 0.3 else allowed)
        assert matcher.consume_token(token)
        written.append(token)
    return None


def read(dialect: str, text: str, *, must_call: bool = False) -> WholeAnswer:
    parser = ToolCallParser(
        load_dialect(dialect), TOOLS, lambda name, index: f"{index}-{name}", must_call=must_call
    )
    return parse_whole(parser, [(text, 1)])


@each
@pytest.mark.parametrize("is_parallel", [False, True])
def test_what_the_grammar_allows_is_read_as_calls_that_fit(dialect: str, is_parallel: bool) -> None:
    use = ToolUse([], TOOLS, "required", is_parallel)
    grammar = calls_grammar(load_dialect(dialect), use, {})
    texts = [text for seed in range(12) if (text := random_answer(grammar, seed)) is not None]
    assert len(texts) >= 6
    for text in texts:
        answer = read(dialect, text)
        assert (answer.content, len(answer.calls) > 0) == ("", True), text
        assert is_parallel or len(answer.calls) == 1
        for call in answer.calls:
            jsonschema.validate(json.loads(call.arguments), TOOLS[call.name])
    names = {call.name for text in texts for call in read(dialect, text).calls}
    assert names == set(TOOLS)


@each
def test_a_required_call_that_is_cut_is_the_beginning_of_one_and_no_content(dialect: str) -> None:
    grammar = calls_grammar(load_dialect(dialect), ToolUse([], TOOLS, "required", True), {})
    texts = [text for seed in range(4) if (text := random_answer(grammar, seed)) is not None]
    for text in texts:
        calls = read(dialect, text, must_call=True).calls
        for end in range(len(text)):
            cut = read(dialect, text[:end], must_call=True)
            assert cut.content == "", text[:end]
            assert [call.name for call in cut.calls] == [call.name for call in calls[: len(cut.calls)]]


@each
def test_only_what_may_be_called_is_in_the_grammar(dialect: str) -> None:
    grammar = calls_grammar(load_dialect(dialect), ToolUse([], {"time.now": NOTHING}, "required", False), {})
    texts = {random_answer(grammar, seed) for seed in range(4)}
    assert all(read(dialect, text).calls[0].name == "time.now" for text in texts if text)


def test_marks_that_are_special_tokens_are_these_tokens_and_no_text() -> None:
    use = ToolUse([], {"time.now": NOTHING}, "required", False)
    grammar = calls_grammar(load_dialect("hermes"), use, {"<tool_call>": 258, "<|end|>": 257})
    assert "<[258]>" in grammar
    assert "<tool_call>" not in grammar
    assert "</tool_call>" in grammar


FLAT: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_coder", {**TYPED, "minProperties": 2}, "'f' use 'minProperties'"),
    ("pythonic", {**TYPED, "minProperties": 2}, "'f' use 'minProperties'"),
    ("qwen3_coder", {"properties": {"a>b": {}}}, "'a>b', which this model's form of calls has no way"),
    ("pythonic", {"properties": {"a-b": {}}}, "'a-b', which this model's form of calls has no way"),
    ("pythonic", {"required": ["a"]}, "requires the parameter 'a', which is none"),
    ("qwen3_coder", {"properties": {"a": {"type": "string", "maxLength": 3}}}, "'a' use 'maxLength'"),
    ("qwen3_coder", {"properties": {"a": {"anyOf": [{"type": "string"}]}}}, "'a' use 'anyOf'"),
]


@pytest.mark.parametrize(("dialect", "schema", "words"), FLAT)
def test_what_a_form_cannot_be_held_to_is_refused_by_name(
    dialect: str, schema: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refused:
        calls_grammar(load_dialect(dialect), ToolUse([], {"f": schema}, "required", True), {})
    assert refused.value.param == "tools"


@each
def test_no_parameter_is_invented_where_the_schema_lists_some(dialect: str) -> None:
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}}}
    grammar = calls_grammar(load_dialect(dialect), ToolUse([], {"weather": schema}, "required", False), {})
    texts = {random_answer(grammar, seed) for seed in range(8)}
    given = [json.loads(read(dialect, text).calls[0].arguments) for text in texts if text]
    assert {name for arguments in given for name in arguments} == {"on"}
