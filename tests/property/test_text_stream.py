"""Text streams: whatever the tokens, the cuts and the stop strings, the pieces are the one-shot text."""

import codecs
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.frontend.text.text_stream import TextStream
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.tiny_model import write_tiny_model

BYTES = ByteTokenizer()
TEXTS = st.text(st.sampled_from("ab<|e\n é日👍🏽\u0301\u2028�"), max_size=40) | st.text(max_size=20)
STOPS = st.lists(st.text(st.sampled_from("ab<é日"), min_size=1, max_size=4), max_size=3).map(tuple)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(open_checkpoint(write_tiny_model(Path(tmp_path_factory.mktemp("model")))))


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, length), max_size=length).map(lambda inner: [0, *sorted(inner), length])


def visible(text: str, stops: tuple[str, ...], *, include_stop: bool) -> tuple[str, str | None]:
    """The text up to the stop string that is completed first, of several at once the list's first."""
    for end in range(1, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            stop = completed[0]
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


def without_possible_stop(text: str, stops: tuple[str, ...]) -> str:
    for start in range(len(text)):
        if any(stop != text[start:] and stop.startswith(text[start:]) for stop in stops):
            return text[:start]
    return text


@given(data=st.data(), text=TEXTS, stops=STOPS, include_stop=st.booleans())
def test_pieces_cut_at_any_byte_are_the_text_up_to_the_first_stop(
    data: st.DataObject, text: str, stops: tuple[str, ...], include_stop: bool
) -> None:
    ids = list(text.encode())
    edges = data.draw(cuts(len(ids)))
    stream = TextStream(BYTES, stop=stops, include_stop=include_stop, skip_special_tokens=True)
    expected, expected_stop = visible(text, stops, include_stop=include_stop)

    sent, stop, used = "", None, 0
    for start, end in pairwise(edges):
        piece = stream.push(ids[start:end], False)
        sent += piece.text
        used += piece.tokens_used
        stop = stop or piece.stop
        if stop is None:
            known = codecs.getincrementaldecoder("utf-8")().decode(bytes(ids[:end]))
            assert sent == without_possible_stop(known, stops)
        else:
            assert sent == expected
    last = stream.push([], True)

    assert (sent + last.text, stop) == (expected, expected_stop)
    upto = text[: text.index(expected) + len(expected)] if stop is None or include_stop else expected + stop
    assert used == len(upto.encode())


@given(data=st.data(), octets=st.binary(max_size=30), stops=STOPS)
def test_bytes_that_are_not_utf8_become_replacement_characters(
    data: st.DataObject, octets: bytes, stops: tuple[str, ...]
) -> None:
    edges = data.draw(cuts(len(octets)))
    stream = TextStream(BYTES, stop=stops, include_stop=False, skip_special_tokens=True)
    pieces = [stream.push(list(octets[a:b]), False) for a, b in pairwise(edges)]
    pieces.append(stream.push([], True))

    text, stop = visible(octets.decode("utf-8", "replace"), stops, include_stop=False)
    assert "".join(piece.text for piece in pieces) == text
    assert next((piece.stop for piece in pieces if piece.stop), None) == stop


@given(text=TEXTS)
def test_pieces_of_real_tokens_cut_everywhere_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    stream = TextStream(tokenizer, stop=(), include_stop=False, skip_special_tokens=True)
    pieces = [stream.push([token_id], False).text for token_id in ids]
    assert "".join(pieces) + stream.push([], True).text == text


@given(data=st.data())
def test_any_tokens_stream_as_they_decode_at_once(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=20))
    skip = data.draw(st.booleans())
    stream = TextStream(tokenizer, stop=(), include_stop=False, skip_special_tokens=skip)
    pieces = [stream.push([token_id], False).text for token_id in ids]
    joined = "".join(pieces) + stream.push([], True).text
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)
