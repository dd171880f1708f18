"""A GrammarSpec in llguidance's own words."""

from typing import TYPE_CHECKING

from llguidance import LLMatcher

from atomesh.grammars.depth import check_depth
from atomesh.grammars.expression import check_expression
from atomesh.grammars.json_schema.prepared_schema import prepared_schema
from atomesh.protocol.grammar import GrammarSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# As compact as JSON is usually written, so that no model goes on with white space to its end. Without \u
# a name has one spelling, so that none passes for another.
COMPACT: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
    "json_allowed_escapes": 'nrbtf\\"',
}


def grammar_text(spec: GrammarSpec) -> str:
    """Raises ValueError for a schema that is no JSON, an expression that is none, and what may lead too deep.

    InvalidRequestError names the keyword of a schema that is not held.
    """
    check_depth(spec)
    match spec.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(prepared_schema(spec.source), overrides=COMPACT)
        case "regex":
            check_expression(spec.source)
            return LLMatcher.grammar_from_regex(spec.source)
        case "lark":
            return LLMatcher.grammar_from_lark(spec.source)
