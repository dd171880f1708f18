import pytest

from atomesh.frontend.text.text_stream import TextPiece, TextStream
from atomesh.testing.byte_tokenizer import END, START, ByteTokenizer

TOKENIZER = ByteTokenizer()


def stream(*stop: str, include_stop: bool = False, skip: bool = True, min_tokens: int = 0) -> TextStream:
    return TextStream(
        TOKENIZER, stop=stop, include_stop=include_stop, skip_special_tokens=skip, min_tokens=min_tokens
    )


def test_a_character_waits_for_its_last_byte() -> None:
    texts = stream()
    assert [texts.push([byte], False).text for byte in "日".encode()] == ["", "", "日"]


def test_an_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    texts = stream()
    assert texts.push(list(b"a\xf0\x9f\x91"), False) == TextPiece("a", None, 4)
    assert texts.push([], True) == TextPiece("\ufffd", None, 0)


def test_only_what_may_become_a_stop_is_held() -> None:
    texts = stream("</answer>")
    assert texts.push(list(b"x <b> </an"), False).text == "x <b> "
    assert texts.push(list(b"ts"), False).text == "</ants"


def test_a_stop_string_over_three_pieces_ends_the_text() -> None:
    texts = stream("STOP")
    assert texts.push(list(b"go ST"), False) == TextPiece("go ", None, 5)
    assert texts.push(list(b"O"), False) == TextPiece("", None, 1)
    assert texts.push(list(b"P and on"), False) == TextPiece("", "STOP", 1)
    assert texts.push(list(b" more"), True) == TextPiece("", None, 0)


def test_a_stop_string_may_be_included() -> None:
    texts = stream("\n\n", include_stop=True)
    assert texts.push(list(b"one\n\ntwo"), True) == TextPiece("one\n\n", "\n\n", 5)


@pytest.mark.parametrize(
    ("stops", "text", "stop"),
    [(("ab", "b"), "", "ab"), (("b", "ab"), "a", "b"), (("abc", "b"), "a", "b"), (("aab",), "a", "aab")],
)
def test_the_stop_completed_first_wins_then_the_lists_first(
    stops: tuple[str, ...], text: str, stop: str
) -> None:
    given = b"aaab" if stop == "aab" else b"abc"
    assert stream(*stops).push(list(given), True) == TextPiece(
        text, stop, given.index(stop.encode()) + len(stop)
    )


def test_an_answer_that_ends_within_a_stop_releases_it() -> None:
    assert stream("STOP").push(list(b"x STO"), True).text == "x STO"


def test_special_tokens_are_skipped_or_shown() -> None:
    assert stream().push([97, END, 98], True).text == "ab"
    assert stream(skip=False).push([97, END, 98], True).text == "a<|end|>b"


def test_special_tokens_that_an_answer_is_parsed_by_are_shown_though_others_are_skipped() -> None:
    texts = TextStream(ByteTokenizer(), stop=("<|start|>b",), shown_special=frozenset({START}))
    assert texts.push([97, END, START, 98, 99], True) == TextPiece("a", "<|start|>b", 4)


def test_a_stop_token_is_not_part_of_the_text() -> None:
    assert stream(skip=False).push([97, END], True, ends_with_stop_token=True) == TextPiece("a", None, 2)
    assert stream().push([97, 98], True, ends_with_stop_token=True) == TextPiece("a", None, 2)
    kept = stream(include_stop=True).push([97, 98], True, ends_with_stop_token=True)
    assert kept == TextPiece("ab", None, 2)


def test_stop_strings_do_not_count_within_the_minimum() -> None:
    texts = stream("a", min_tokens=2)
    assert texts.push(list(b"aa"), False) == TextPiece("aa", None, 2)
    assert texts.push(list(b"ba"), False) == TextPiece("b", "a", 2)


def test_a_stop_string_may_begin_within_the_minimum_and_end_after_it() -> None:
    texts = stream("aba", min_tokens=3)
    assert texts.push(list(b"aba"), False) == TextPiece("ab", None, 3)
    assert texts.push(list(b"b"), False) == TextPiece("", None, 1)
    assert texts.push(list(b"a!"), False) == TextPiece("", "aba", 1)
