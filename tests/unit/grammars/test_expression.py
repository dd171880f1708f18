import pytest
from llguidance import LLMatcher

from atomesh.grammars.limits import parser_limits
from atomesh.grammars.source import grammar_text
from atomesh.protocol.grammar import GrammarSpec


def spec(source: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", source=source)


@pytest.mark.parametrize("source", ["\\", "a\\", "[ab]{2}\\", "a\\\\\\", "a\n\\"])
def test_half_an_escape_is_not_left_out_but_refused(source: str) -> None:
    with pytest.raises(ValueError, match="ends with half an escape"):
        grammar_text(spec(source))


@pytest.mark.parametrize("source", ["a\\\\", "\\\\", "\\\\\\\\", "a/\\/", "a\\\n", "[\\\\]", "a\\\\\n"])
def test_whole_escapes_are_taken(source: str) -> None:
    assert LLMatcher.validate_grammar(grammar_text(spec(source)), limits=parser_limits()) == ""
