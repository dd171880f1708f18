"""A state is a function of the output tokens: no fork, preemption, retry or hand-off can put it wrong."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.engine.structured_output.grammar_state import GrammarState
from atomesh.engine.structured_output.grammars import GrammarCache
from atomesh.engine.structured_output.prepared import PreparedGrammar
from atomesh.grammars.vocabulary import vocabulary_of
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.grammar import GrammarSpec
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.byte_tokenizer import END, START, ByteTokenizer

CACHE = GrammarCache(lambda: vocabulary_of(ByteTokenizer(), 259, (END,)))
LANGUAGE = "a[xyz]{2,6}b"


def prepared(regex: str = LANGUAGE, begins_after: tuple[int, ...] = ()) -> PreparedGrammar:
    grammar = GrammarSpec(kind="regex", source=regex, begins_after=begins_after)
    sampling = SamplingSpec(seed=1, max_tokens=9, grammar=grammar)
    request = GenerationRequest(request_id="r", prompt_token_ids=[1], sampling=sampling)
    found = CACHE.prepare(request).sampling.grammar
    assert isinstance(found, PreparedGrammar)
    return found


def allowed(state: GrammarState) -> set[int] | None:
    """The ids that may follow; None for all."""
    if state.matcher is None:
        return None
    bits = int.from_bytes(state.matcher.compute_bitmask(), "little")
    assert not state.matcher.is_error(), state.matcher.get_error()
    return {place for place in range(bits.bit_length()) if bits >> place & 1}


def expected(text: str) -> set[int]:
    """By hand, for LANGUAGE."""
    if text == "":
        return {ord("a")}
    middle = text[1:]
    letters = {*map(ord, "xyz")} if len(middle) < 6 else set()
    return letters | ({ord("b")} if len(middle) >= 2 else set())


words = st.from_regex(re.compile(LANGUAGE), fullmatch=True).flatmap(
    lambda text: st.integers(0, len(text) - 1).map(lambda end: text[:end])
)


@given(st.lists(words, min_size=1, max_size=8))
def test_whatever_came_before_it_stands_where_the_tokens_say(texts: list[str]) -> None:
    """One state is led from one output to the next: on, back, and somewhere else."""
    state = GrammarState(prepared())
    for text in texts:
        state.follow(text.encode())
        assert allowed(state) == expected(text)


def test_a_token_that_was_consumed_when_it_was_sampled_is_not_consumed_again() -> None:
    state = GrammarState(prepared())
    assert [state.advance(byte) for byte in b"axyz"] == [False] * 4
    state.follow(b"axyz")
    assert allowed(state) == expected("axyz")


def test_the_end_is_told_with_the_last_token_and_a_look_ahead_does_not_move() -> None:
    state = GrammarState(prepared())
    state.follow(b"axx")
    assert [state.would_end_with(byte) for byte in b"bxb"] == [True, False, True]
    assert allowed(state) == expected("axx")
    assert state.advance(ord("b"))
    state.follow(b"axx")  # the step has to be taken again
    assert allowed(state) == expected("axx")


@pytest.mark.parametrize("mark", [(START,), (65, 66), (65, 65, 66)])
def test_all_is_free_until_the_mark_has_come(mark: tuple[int, ...]) -> None:
    state = GrammarState(prepared(begins_after=mark))
    before = [7, END, *mark[:-1], 9, 65]
    for token_id in before:
        assert allowed(state) is None
        assert not state.advance(token_id)
    for token_id in mark:
        assert allowed(state) is None
        state.advance(token_id)
    assert allowed(state) == {ord("a")}
    state.follow([*before, *mark, *b"ax", *mark[:1]])  # what the grammar forbids is not its beginning again
    other = GrammarState(prepared(begins_after=mark))
    other.follow([*before, *mark, *b"axy"])
    assert allowed(other) == expected("axy")
    other.follow(before)
    assert allowed(other) is None


def test_the_end_may_follow_where_the_language_may_end() -> None:
    state = GrammarState(prepared("a+"))
    assert allowed(state) == {ord("a")}
    assert not state.advance(ord("a"))
    assert allowed(state) == {ord("a"), END}
    assert state.advance(END)


def test_a_model_without_an_end_goes_on_until_the_grammar_ends() -> None:
    cache = GrammarCache(lambda: vocabulary_of(ByteTokenizer(), 259, ()))
    sampling = SamplingSpec(seed=1, max_tokens=9, grammar=GrammarSpec(kind="regex", source="a+b?"))
    request = GenerationRequest(request_id="r", prompt_token_ids=[1], sampling=sampling)
    grammar = cache.prepare(request).sampling.grammar
    assert isinstance(grammar, PreparedGrammar)
    assert grammar.eos_ids == ()
    state = GrammarState(grammar)
    state.advance(ord("a"))
    assert allowed(state) == {ord("a"), ord("b"), 259}  # which is no id of the model's
    assert state.advance(ord("b"))
