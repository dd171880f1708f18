"""Every dialect: what is reasoning and what is the answer, however the text is cut."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import ConfigurationError
from atomesh.frontend.answer.answer_parser import AnswerParser, PlainAnswer
from atomesh.frontend.answer.whole_answer import WholeAnswer, WholeCall, parse_whole
from atomesh.frontend.reasoning.dialect import AnswerStart, Opening, ReasoningDialect
from atomesh.frontend.reasoning.dialects import DIALECTS, find_reasoning_dialect
from atomesh.frontend.reasoning.hidden_reasoning import HiddenReasoning
from atomesh.frontend.reasoning.tag_dialect import TagDialect
from atomesh.frontend.text.text_stream import TextStream
from atomesh.testing.byte_tokenizer import ByteTokenizer

TAGGED = [dialect for dialect in DIALECTS.values() if isinstance(dialect, TagDialect)]
THOUGHT = "A < b, so — not yet.\n\nThen c."
END_THINK = 300
SAID = "It is c <sup>2</sup>.\n"


def make(dialect: ReasoningDialect, prompt_end: str, *, is_continued: bool = False) -> AnswerParser:
    opening = dialect.find_opening(prompt_end, is_continued=is_continued)
    start = AnswerStart(prompt_end, opening, ("find", "add"), lambda name, index: f"{name}-{index}")
    return dialect.make_parser(start, PlainAnswer())


def whole(parser: AnswerParser, text: str) -> tuple[WholeAnswer, int]:
    """Each character is a token."""
    answer = parse_whole(parser, [(character, 1) for character in text])
    return answer, parser.reasoning_tokens


def check_cuts(make_one: Callable[[], AnswerParser], text: str) -> WholeAnswer:
    """The answer, the same with every cut in two, and with every end cut off of what is streamed whole."""
    answer = parse_whole(make_one(), [(text, len(text))])
    for cut in range(len(text) + 1):
        pieces = [(text[:cut], cut), (text[cut:], len(text) - cut)]
        assert parse_whole(make_one(), pieces) == answer, cut
        assert whole(make_one(), text[:cut])[0] == parse_whole(make_one(), [(text[:cut], cut)]), cut
    return answer


@pytest.mark.parametrize("dialect", TAGGED, ids=lambda dialect: dialect.name)
def test_reasoning_and_answer_are_told_apart_at_every_cut(dialect: TagDialect) -> None:
    text = f"{dialect.start}\n{THOUGHT}\n{dialect.end}\n\n{SAID}"
    assert check_cuts(lambda: make(dialect, "assistant\n"), text) == WholeAnswer(SAID, THOUGHT)


@pytest.mark.parametrize("dialect", TAGGED, ids=lambda dialect: dialect.name)
def test_the_prompt_may_have_opened_it(dialect: TagDialect) -> None:
    text = f"{THOUGHT}{dialect.end}{SAID}"
    prompt = f"assistant\n{dialect.start}\n"
    assert check_cuts(lambda: make(dialect, prompt), text) == WholeAnswer(SAID, THOUGHT)
    assert check_cuts(lambda: make(dialect, prompt), dialect.start + text) == WholeAnswer(SAID, THOUGHT)


@pytest.mark.parametrize("dialect", TAGGED, ids=lambda dialect: dialect.name)
def test_the_prompt_may_have_ended_it(dialect: TagDialect) -> None:
    text = f"{SAID}{dialect.start}{THOUGHT}{dialect.end}"
    assert check_cuts(lambda: make(dialect, f"{dialect.start}\n\n{dialect.end}\n\n"), text) == WholeAnswer(
        text
    )


@pytest.mark.parametrize("dialect", TAGGED, ids=lambda dialect: dialect.name)
def test_an_answer_cut_short_in_its_reasoning_says_nothing(dialect: TagDialect) -> None:
    text = f"{dialect.start}\n{THOUGHT}"
    assert check_cuts(lambda: make(dialect, ""), text) == WholeAnswer("", THOUGHT)


@pytest.mark.parametrize(
    "text", ["", " \n", SAID, " <thin>", "<", "<thinking>", "1 <think>2</think>", " " * 80]
)
def test_an_answer_without_reasoning_is_as_the_model_wrote_it(text: str) -> None:
    assert check_cuts(lambda: make(DIALECTS["think"], "assistant\n"), text) == WholeAnswer(text)


def test_one_that_opens_unseen_begins_inside() -> None:
    dialect = DIALECTS["deepseek_r1"]
    assert check_cuts(lambda: make(dialect, "<|Assistant|>"), "a</think>b") == WholeAnswer("b", "a")
    assert check_cuts(lambda: make(dialect, "</think>"), "a</think>b") == WholeAnswer("a</think>b")


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ("<think>\nI", WholeAnswer("b", "a")),
        ("<think>I</think>So", WholeAnswer("a</think>b")),
        ("So", WholeAnswer("a</think>b")),
    ],
)
def test_an_answer_that_is_continued_is_where_it_was(begun: str, expected: WholeAnswer) -> None:
    assert check_cuts(lambda: make(DIALECTS["think"], begun, is_continued=True), "a</think>b") == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("<think>\nabc\n</think>\n\nd", 5),
        ("<think></think>d", 0),
        ("<think>ab</thi", 7),
        ("d", 0),
        ("<think>", 0),
    ],
)
def test_tokens_between_the_tags_are_counted(text: str, tokens: int) -> None:
    """Of one character each."""
    assert whole(make(DIALECTS["think"], ""), text)[1] == tokens


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        ([("<think>", 1), ("a", 1), ("</think>", 1), ("b", 1)], 1),
        ([("<think>", 1), ("a.</", 1), ("think", 1), (">b", 1)], 1),
        ([("<think>", 1), ("", 1), ("é", 1), ("", 1), ("日", 2), ("</think>", 1)], 5),
        ([("<think>", 1), ("ab", 1), ("</think>", 0)], 1),
        ([("<think>", 1), ("", 1), ("", 1), ("\ufffd</think>", 1)], 2),
        ([("<think>", 1), ("ab</", 0), ("think>", 1)], 0),
        ([("<think>ab</think>cd", 4)], 1),
        ([("<think>", 1), ("abcd</think>", 3)], 1),
        ([("<think>", 1), ("a", 1), ("", 1)], 1),
    ],
)
def test_a_token_counts_when_any_of_it_is_reasoning(pieces: list[tuple[str, int]], tokens: int) -> None:
    parser = make(DIALECTS["think"], "")
    parse_whole(parser, pieces)
    assert parser.reasoning_tokens == tokens


class OneTokenTag(ByteTokenizer):
    """Bytes, and one token for the tag that ends thoughts."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"</think>" if token_id == END_THINK else super().token_bytes(token_id)


@given(st.lists(st.sampled_from(list(b"\na</\xc3\xa9\xe2\x82\x80")), max_size=9))
def test_tokens_are_counted_exactly_whatever_characters_they_break(thought: list[int]) -> None:
    token_ids = [*thought, END_THINK, *b"said"]
    text = TextStream(OneTokenTag())  # type: ignore[arg-type]
    pieces = [(text.push([token_id], final=False).text, 1) for token_id in token_ids]
    parser = make(DIALECTS["think"], "<think>\n")
    assert parse_whole(parser, pieces).content == "said"
    assert parser.reasoning_tokens == len(thought)


def test_hidden_reasoning_is_counted_all_the_same() -> None:
    parser = HiddenReasoning(make(DIALECTS["think"], ""))
    assert whole(parser, "<think>abc</think>d") == (WholeAnswer("d"), 3)


CHANNEL = "<|channel|>"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
FIND = "<|channel|>commentary to=functions.find <|constrain|>json<|message|>"
ADD = " to=functions.add<|channel|>commentary json<|message|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ANALYSIS}{THOUGHT}{NEXT}{FINAL}{SAID}<|return|>", WholeAnswer(SAID, THOUGHT)),
        (f"{FINAL}{SAID}", WholeAnswer(SAID)),
        (
            f'{ANALYSIS}Look.{NEXT}{FIND}{{"q": "<|"}}<|call|>',
            WholeAnswer("", "Look.", [WholeCall("find-0", "find", '{"q": "<|"}')]),
        ),
        (
            f"{ANALYSIS}a{NEXT}<|channel|>commentary<|message|>Wait.{NEXT}{FIND}{{}}<|call|><|start|>assistant{ADD}"
            f'{{"x": 1}}{NEXT}{ANALYSIS}b{NEXT}{FINAL}c',
            WholeAnswer(
                "Wait.\nc", "a\nb", [WholeCall("find-0", "find", "{}"), WholeCall("add-1", "add", '{"x": 1}')]
            ),
        ),
        (f"{FIND}<|call|>", WholeAnswer("", "", [WholeCall("find-0", "find", "{}")])),
        (f"{FIND} ", WholeAnswer("", "", [WholeCall("find-0", "find", " {}")])),
        (
            f"<|channel|>analysis to=python code<|message|>1+1<|call|><|start|>assistant{FINAL}2",
            WholeAnswer("2", "1+1"),
        ),
        (f"{FIND.replace('find', 'drop')}{{}}", WholeAnswer("", "{}")),
        (f"{ANALYSIS}no end<|start|>assistant{FINAL}said", WholeAnswer("said", "no end")),
        ("Said at once.", WholeAnswer("Said at once.")),
        ("2 < 3 <|end|>", WholeAnswer("2 < 3 ")),
        ("<b>said</b>", WholeAnswer("<b>said</b>")),
        ("<|channel|>anal", WholeAnswer()),
        (f"{CHANNEL}{'x' * 600}<|message|>a<|end|>", WholeAnswer("", f"{CHANNEL}{'x' * 600}<|message|>a")),
        ("", WholeAnswer()),
    ],
)
def test_harmony_at_every_cut(text: str, expected: WholeAnswer) -> None:
    assert check_cuts(lambda: make(DIALECTS["harmony"], "<|start|>assistant"), text) == expected


def test_harmony_goes_on_with_a_message_that_the_prompt_has_begun() -> None:
    prompt = f"<|start|>user<|message|>Hi<|end|><|start|>assistant{FINAL}It"
    assert check_cuts(
        lambda: make(DIALECTS["harmony"], prompt, is_continued=True), f" is.{NEXT}{ANALYSIS}ok"
    ) == WholeAnswer(" is.", "ok")


def test_harmony_counts_what_is_said_in_analysis_alone() -> None:
    text = f"{ANALYSIS}abc{NEXT}{FIND}{{}}<|call|>"
    parser = make(DIALECTS["harmony"], "<|start|>assistant")
    marks = ["<|channel|>", "analysis", "<|message|>", "a", "bc", "<|end|>", "<|start|>", "assistant"]
    rest = text[len("".join(marks)) :]
    parse_whole(parser, [(mark, 1) for mark in marks] + [(character, 1) for character in rest])
    assert parser.reasoning_tokens == 2
    assert parser.has_called


@pytest.mark.parametrize(
    ("arguments", "is_whole"),
    [
        ('{"a": "b"}', True),
        ("", True),
        ('{"a": ', False),
        ("[1]", False),
        ("x", False),
        ('{"a": NaN}', False),
    ],
)
def test_harmony_has_called_where_the_last_call_is_whole(arguments: str, is_whole: bool) -> None:
    parser = make(DIALECTS["harmony"], "<|start|>assistant")
    parse_whole(parser, [(f"{FIND}{{}}<|call|><|start|>assistant{FIND}{arguments}", 9)])
    assert parser.has_called == is_whole


words = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<", "</", "think>", "\n", " ", "a", ANALYSIS, FINAL, FIND, NEXT, "<|"]
    ),
    max_size=12,
)


@given(st.sampled_from(["think", "deepseek_r1", "harmony"]), words, st.lists(st.integers(0, 9), max_size=80))
def test_pieces_of_any_size_make_the_same_answer(name: str, said: Sequence[str], sizes: list[int]) -> None:
    text = "".join(said)
    pieces, rest = [], text
    for size in sizes:
        pieces.append((rest[:size], 1))
        rest = rest[size:]
    whole_one = parse_whole(make(DIALECTS[name], ""), [(text, 1)])
    assert parse_whole(make(DIALECTS[name], ""), [*pieces, (rest, 1)]) == whole_one


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<|start|>assistant<|channel|>final<|message|>' }}", "harmony"),
        ("{% if '</think>' in content %}", "think"),
        ("{{ '<｜Assistant｜><think>\n' }}", "think"),
        ("[THINK]{{ x }}[/THINK]", "mistral"),
        ("<seed:think>", "seed_oss"),
        ("after 'Here is my thought process:' and then", "granite"),
        ("{{ '<|im_start|>assistant\n' }}", None),
    ],
)
def test_a_template_tells_its_dialect(template: str, name: str | None) -> None:
    found = find_reasoning_dialect(["{{ messages }}", template])
    assert (found and found.name) == name


def test_the_operators_word_goes_before_the_templates() -> None:
    assert find_reasoning_dialect(["<think>"], "none") is None
    assert find_reasoning_dialect(["<think>"], "mistral") is DIALECTS["mistral"]
    with pytest.raises(
        ConfigurationError, match="--reasoning-parser is 'qwen9'; it must be one of harmony, "
    ):
        find_reasoning_dialect([], "qwen9")


@pytest.mark.parametrize(
    ("name", "effort", "variables"),
    [
        ("think", "none", {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        ("think", "high", {"reasoning_effort": "high", "enable_thinking": True, "thinking": True}),
        ("harmony", "none", {"reasoning_effort": "low"}),
        ("harmony", "medium", {"reasoning_effort": "medium"}),
        ("harmony", "xhigh", {"reasoning_effort": "high"}),
    ],
)
def test_effort_is_told_in_the_templates_words(name: str, effort: str, variables: dict[str, object]) -> None:
    assert DIALECTS[name].effort_variables(effort) == variables


def test_harmonys_template_takes_reasoning_by_another_name() -> None:
    adapt = DIALECTS["harmony"].adapt_message
    said = {"role": "assistant", "content": "c"}
    assert adapt(said) == said
    assert adapt({**said, "reasoning_content": "r"}) == {**said, "thinking": "r"}
    calls = [{"function": {"name": "find", "arguments": {}}}]
    assert adapt({**said, "reasoning_content": "r", "tool_calls": calls}) == {
        "role": "assistant",
        "content": "",
        "thinking": "r\nc",
        "tool_calls": calls,
    }


def test_where_the_answer_stands_follows_from_the_prompts_end() -> None:
    think = DIALECTS["think"]
    assert think.find_opening("<|im_start|>assistant\n", is_continued=False) is Opening.OPEN
    assert think.find_opening("<think>\n", is_continued=False) is Opening.INSIDE
    assert think.find_opening("<think>\n\n</think>\n\n", is_continued=False) is Opening.CLOSED
