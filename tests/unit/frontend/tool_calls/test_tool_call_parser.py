"""Every dialect's transcripts, whole and cut anywhere (FAULTS.md B7)."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomesh.frontend.answer.parts import ContentDelta, Part, ToolArgumentsDelta, ToolCallStart
from atomesh.frontend.answer.whole_answer import WholeAnswer, join_parts
from atomesh.frontend.tool_calls.registry import DIALECTS, load_dialect
from atomesh.frontend.tool_calls.tool_call_parser import ToolCallParser
from atomesh.testing.tool_transcripts import TOOLS, TRANSCRIPTS, Transcript

each = pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda t: f"{t.dialect}-{t.text[:30]!r}")


def make_parser(dialect: str, **options: Any) -> ToolCallParser:
    return ToolCallParser(load_dialect(dialect), TOOLS, lambda name, index: f"{index}-{name}", **options)


def parts_of(parser: ToolCallParser, pieces: list[str]) -> list[Part]:
    *firsts, last = pieces
    parts = [part for piece in firsts for part in parser.feed(piece, 1, is_final=False)]
    return parts + parser.feed(last, 1, is_final=True)


def whole(dialect: str, pieces: list[str], **options: Any) -> WholeAnswer:
    return join_parts(parts_of(make_parser(dialect, **options), pieces))


def arguments_of(text: str) -> Any:
    text.encode()  # as it goes to a client
    try:
        return json.loads(text)
    except ValueError:
        return text


@each
def test_a_transcript_says_what_it_says(transcript: Transcript) -> None:
    answer = whole(transcript.dialect, [transcript.text])
    assert answer.content == transcript.content
    assert [(call.name, arguments_of(call.arguments)) for call in answer.calls] == list(transcript.calls)


@each
def test_a_cut_at_any_offset_changes_nothing(transcript: Transcript) -> None:
    text = transcript.text
    expected = whole(transcript.dialect, [text])
    for cut in range(len(text) + 1):
        assert whole(transcript.dialect, [text[:cut], text[cut:]]) == expected
    assert whole(transcript.dialect, [*text, ""]) == expected


@given(st.sampled_from(TRANSCRIPTS), st.lists(st.integers(0, 400), max_size=12))
def test_cuts_anywhere_change_nothing(transcript: Transcript, cuts: list[int]) -> None:
    text = transcript.text
    places = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    assert whole(transcript.dialect, pieces) == whole(transcript.dialect, [text])


FRAGMENTS = sorted(
    {mark for name in DIALECTS for mark in load_dialect(name).marks}
    | {
        "<function=weather>",
        "<parameter=days>",
        "</parameter>",
        "</function>",
        '{"name": "weather"',
        "[",
        "(",
    }
    | {
        ', "arguments": {',
        '"city": "x"',
        "}}",
        "weather",
        "time.now",
        "{}",
        ",",
        ";",
        " ",
        "\n",
        "=",
        "'",
        ")",
        "]",
    }
)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(DIALECTS)),
    st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12),
)
def test_whatever_is_written_is_read_the_same_in_pieces_and_not_lost(dialect: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    expected = whole(dialect, [text])
    assert whole(dialect, [*text, ""]) == expected
    if not expected.calls:
        assert expected.content == text


@each
def test_the_parts_of_a_call_follow_its_start(transcript: Transcript) -> None:
    current = -1
    for part in parts_of(make_parser(transcript.dialect), [*transcript.text, ""]):
        match part:
            case ToolCallStart(index, call_id, name):
                current += 1
                assert (index, name) == (current, transcript.calls[current][0])
                assert call_id
            case ToolArgumentsDelta(index, text):
                assert index == current
                assert text
            case ContentDelta(text):
                assert text


def test_a_call_is_told_as_soon_as_its_arguments_begin_and_they_as_they_come() -> None:
    parser = make_parser("hermes")
    assert parser.feed('<tool_call>{"name": "weather", "arguments": ', 9, is_final=False) == []
    assert not parser.has_called
    assert parser.feed('{"ci', 1, is_final=False) == [
        ToolCallStart(0, "0-weather", "weather"),
        ToolArgumentsDelta(0, '{"ci'),
    ]
    assert not parser.has_called
    assert parser.feed('ty": "Ber', 1, is_final=False) == [ToolArgumentsDelta(0, 'ty": "Ber')]
    assert parser.feed('lin"}}</tool_call>', 1, is_final=True) == [ToolArgumentsDelta(0, 'lin"}')]
    assert parser.has_called


@each
def test_an_answer_has_called_where_its_last_call_is_whole(transcript: Transcript) -> None:
    """A client runs what `finish_reason: tool_calls` tells it of: what a stop string has cut is none."""
    for place in range(1, len(transcript.text) + 1):
        parser = make_parser(transcript.dialect)
        answer = join_parts(parser.feed(transcript.text[:place], 1, is_final=True))
        is_whole = bool(answer.calls) and isinstance(arguments_of(answer.calls[-1].arguments), dict)
        assert parser.has_called == is_whole


def test_text_that_is_no_mark_goes_out_at_once() -> None:
    parser = make_parser("hermes")
    assert parser.feed("a <", 1, is_final=False) == [ContentDelta("a")]
    assert parser.feed("b", 1, is_final=False) == [ContentDelta(" <b")]


def test_one_call_at_most_leaves_the_others_as_text() -> None:
    text = '<tool_call>{"name": "time.now"}</tool_call>'
    answer = whole("hermes", [text + text], max_calls=1)
    assert [call.name for call in answer.calls] == ["time.now"]
    assert answer.content == text


def test_nobody_sees_special_tokens_that_mark_no_call() -> None:
    marks = load_dialect("kimi_k2").marks
    text = (
        "Hm <|tool_call_end|>so <|tool_call_begin|>nobody:0<|tool_call_argument_begin|>{}<|tool_call_end|>!"
    )
    assert whole("kimi_k2", [text], hidden=marks).content == "Hm so nobody:0{}!"
    assert whole("kimi_k2", [*text, ""], hidden=marks).content == "Hm so nobody:0{}!"


def test_an_id_that_the_model_wrote_is_kept_once() -> None:
    call = "[TOOL_CALLS]time.now[CALL_ID]abcDEF123[ARGS]{}"
    assert [one.call_id for one in whole("mistral", [call * 2]).calls] == ["abcDEF123", "1-time.now"]


def test_arguments_nested_without_end_are_no_call_and_no_crash() -> None:
    text = '<tool_call>{"arguments": ' + '{"a":' * 5_000
    assert whole("hermes", [text]).content == text
    text = "[weather(city=" + "[" * 5_000 + "]" * 5_000 + ")]"
    answer = whole("pythonic", [text])
    assert answer.calls[0].arguments + answer.content == '{"city": ' + text.removeprefix("[weather(city=")
