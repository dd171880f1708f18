"""A grammar that would take the compiler's stack is refused; what is let through compiles on half of it."""

import json
import subprocess
import sys

import pytest

from atomesh.grammars.depth import MAX_LEVELS, check_depth
from atomesh.protocol.grammar import GrammarSpec

COMPILE = """
import sys, threading
from llguidance import LLMatcher
from atomesh.grammars.limits import parser_limits
from atomesh.grammars.source import grammar_text
from atomesh.protocol.grammar import GrammarSpec
spec = GrammarSpec(kind=sys.argv[1], source=sys.stdin.read())
threading.stack_size(4 * 2**20)
def compile():
    print(LLMatcher.validate_grammar(grammar_text(spec), limits=parser_limits()))
work = threading.Thread(target=compile)
work.start()
work.join()
"""


def chained(count: int, wrap: str) -> GrammarSpec:
    """Definitions that each refer to the next; `wrap` has the reference at its %s."""
    names = [wrap % json.dumps({"$ref": f"#/$defs/{number + 1}"}) for number in range(count)]
    definitions = ",".join(f'"{number}":{schema}' for number, schema in enumerate(names))
    return GrammarSpec(
        kind="json_schema",
        source=f'{{"$ref":"#/$defs/0","$defs":{{{definitions},"{count}":{{"type":"null"}}}}}}',
    )


def disguised(count: int, levels: int) -> GrammarSpec:
    """Each reference has two readings: as it stands it names a constant, unquoted what is deep."""
    definitions: dict[str, object] = {f"%64{number}": {"const": 1} for number in range(count)}
    for number in range(count):
        inner: dict[str, object] = {"$ref": f"#/$defs/%64{(number + 1) % count}"}
        for _ in range(levels):
            inner = {"anyOf": [inner, {"type": "string"}]}
        definitions[f"d{number}"] = inner
    source = json.dumps({"$ref": "#/$defs/%640", "$defs": definitions})
    return GrammarSpec(kind="json_schema", source=source)


def ruled(count: int) -> GrammarSpec:
    rules = "\n".join(f"r{number}: r{number + 1}" for number in range(count))
    return GrammarSpec(kind="lark", source=f'start: r0\n{rules}\nr{count}: "a"')


LEADING_DEEP = {
    "references": chained(MAX_LEVELS - 4, "%s"),
    "items": chained(MAX_LEVELS // 2 - 4, '{"type":"array","items":%s}'),
    "any of": chained(MAX_LEVELS // 3 - 4, '{"anyOf":[%s,{"type":"string"}]}'),
    "all of": chained(MAX_LEVELS // 3 - 4, '{"allOf":[%s]}'),
    "rules": ruled(MAX_LEVELS - 4),
}


@pytest.mark.parametrize("spec", LEADING_DEEP.values(), ids=LEADING_DEEP)
def test_what_is_let_through_compiles_on_half_a_stack(spec: GrammarSpec) -> None:
    check_depth(spec)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, spec.kind],
        input=spec.source,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "spec",
    [
        chained(MAX_LEVELS + 1, "%s"),
        chained(MAX_LEVELS // 2 + 1, '{"type":"array","items":%s}'),
        GrammarSpec(kind="json_schema", source='{"a":' * (MAX_LEVELS + 1) + "1" + "}" * (MAX_LEVELS + 1)),
        # names that we do not resolve, and another reader may
        GrammarSpec(
            kind="json_schema",
            source=json.dumps({"anyOf": [{"$ref": f"#/$defs/%{n}"} for n in range(MAX_LEVELS // 3 + 1)]}),
        ),
        disguised(MAX_LEVELS // 4, levels=4),
        ruled(MAX_LEVELS + 1),
    ],
    ids=["references", "items", "nested", "unknown", "disguised", "rules"],
)
def test_what_leads_deeper_is_refused(spec: GrammarSpec) -> None:
    with pytest.raises(ValueError, match="levels deep; "):
        check_depth(spec)


def test_ordinary_schemas_stay_far_below() -> None:
    person = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "friends": {"$ref": "#/$defs/people"}},
    }
    people = {"type": "array", "items": {"$ref": "#"}}
    check_depth(GrammarSpec(kind="json_schema", source=json.dumps({**person, "$defs": {"people": people}})))
    check_depth(GrammarSpec(kind="regex", source="(" * 5000))


def test_a_schema_full_of_references_is_measured_soon() -> None:
    """Each leads to nearly all of it; that is not walked once for each."""
    inner = {"a": {}}
    for _ in range(300):
        inner = {"a": inner}
    many = {"anyOf": [{"$ref": "#" + "/a" * n} for n in range(300)], **inner}
    with pytest.raises(ValueError, match="levels deep"):
        check_depth(GrammarSpec(kind="json_schema", source=json.dumps(many)))
