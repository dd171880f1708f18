"""Hostile grammars are refused soon, and by name; what is sound is compiled once."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atomesh.errors import ServiceUnavailableError
from atomesh.frontend.structured_output.grammar_checker import GrammarChecker
from atomesh.frontend.structured_output.limits import MOST_WAITING
from atomesh.protocol.grammar import GrammarKind, GrammarSpec
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.byte_tokenizer import END, ByteTokenizer

MODEL = ModelDescription(
    name="m",
    path="/m",
    architecture="a",
    dtype="float32",
    vocab_size=259,
    max_model_len=64,
    eos_token_ids=(END,),
    block_size=32,
    num_blocks=8,
)
TOKENIZER = ByteTokenizer()
Check = Callable[[GrammarKind, Any], str]


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.close()


@pytest.fixture
def check(checker: GrammarChecker) -> Check:
    def ask(kind: GrammarKind, source: Any) -> str:
        spec = GrammarSpec(kind=kind, source=source if isinstance(source, str) else json.dumps(source))
        return asyncio.run(checker.find_fault(spec, TOKENIZER, MODEL))

    return ask


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
        ("json_schema", {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#"}}}}),
        ("json_schema", {"enum": [f"v{n}" for n in range(5000)]}),
        ("regex", "(a+)+b"),
        ("regex", "(a|b)*a(a|b){24}"),
        ("lark", 'start: "a" | <|start|> "b"'),
    ],
)
def test_what_can_be_obeyed(check: Check, kind: GrammarKind, source: Any) -> None:
    assert check(kind, source) == ""


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("json_schema", {"not": {}, "uniqueItems": True}, "keywords 'not', 'uniqueItems' are not supported"),
        ("json_schema", {"type": "string", "format": "wizard"}, "'format' is 'wizard'"),
        ("json_schema", {"$ref": "#"}, "no text satisfies it"),
        ("json_schema", {"$ref": "http://127.0.0.1:1/x"}, "127.0.0.1"),
        (
            "json_schema",
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "too large for the limits",
        ),
        (
            "json_schema",
            {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(3000)}},
            "too large for the limits",
        ),
        ("json_schema", {"allOf": [{"enum": [n]} for n in range(9)]}, "Unsatisfiable"),
        (
            "json_schema",
            {"type": "integer", "multipleOf": 999983},
            "limit of .* processor time|MiB of memory",
        ),
        ("json_schema", {"type": "integer", "x-guidance": {"lenient": True}, "not": {}}, "'not'"),
        ("regex", "(", "not valid"),
        ("regex", r"(a)\1", "backreferences are not supported"),
        ("lark", "start: start", "no text satisfies it"),
        ("lark", "start: <|wizard|>", "unknown special token"),
    ],
)
def test_what_is_refused(check: Check, kind: GrammarKind, source: Any, words: str) -> None:
    assert re.search(words, check(kind, source))


def test_what_hangs_the_compiler_is_stopped_and_the_next_is_served(check: Check) -> None:
    hanging = {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(10, 30)]}
    assert "; simplify it" in check("json_schema", hanging)
    assert check("regex", "after it") == ""


def test_verdicts_are_remembered(checker: GrammarChecker, check: Check) -> None:
    assert check("regex", "remember") == ""
    asked: list[object] = []
    checker._ask, ask = lambda *words: asked.append(words) or "", checker._ask  # type: ignore[method-assign]
    try:
        assert check("regex", "remember") == ""
        assert asked == []
        assert check("regex", "remember me not") == ""
        assert len(asked) == 1
    finally:
        checker._ask = ask  # type: ignore[method-assign]


def test_the_line_is_bounded(checker: GrammarChecker) -> None:
    async def crowd() -> list[object]:
        specs = [GrammarSpec(kind="regex", source=f"crowd{n}") for n in range(MOST_WAITING + 1)]
        asked = (checker.find_fault(spec, TOKENIZER, MODEL) for spec in specs)
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(crowd())
    assert found[:MOST_WAITING] == [""] * MOST_WAITING
    assert isinstance(found[-1], ServiceUnavailableError)


def test_a_crowd_that_asks_the_same_is_one_in_line_and_who_leaves_takes_nothing_away(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []
    ask = checker._ask
    monkeypatch.setattr(checker, "_ask", lambda *words: compiled.append(words) or ask(*words))

    async def crowd() -> list[object]:
        spec = GrammarSpec(kind="regex", source="all of them")
        asked = [
            asyncio.create_task(checker.find_fault(spec, TOKENIZER, MODEL)) for _ in range(MOST_WAITING + 9)
        ]
        await asyncio.sleep(0)
        asked[0].cancel()
        return await asyncio.gather(*asked, return_exceptions=True)

    first, *others = asyncio.run(crowd())
    assert isinstance(first, asyncio.CancelledError)
    assert others == [""] * (MOST_WAITING + 8)
    assert len(compiled) == 1


def test_a_process_that_was_killed_is_no_fault_of_the_grammar(checker: GrammarChecker, check: Check) -> None:
    assert check("regex", "before") == ""
    checkers = [checker._checkers.get() for _ in range(2)]
    for one in checkers:
        if one._child is not None:
            os.kill(one._child._process.pid, signal.SIGKILL)
            one._child._process.wait()
        checker._checkers.put(one)
    assert check("regex", "afterwards") == ""
