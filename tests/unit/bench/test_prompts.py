import pytest

from atomesh.bench.prompts import WORDS, Segment, TokenIdWriter, WordWriter
from atomesh.errors import ConfigurationError


def test_token_ids_are_as_many_as_asked_and_in_the_upper_three_quarters_of_the_vocabulary() -> None:
    ids = TokenIdWriter(vocab_size=400, seed=0).write([Segment(0, 0, 1000), Segment(1, 5, 24)])

    assert len(ids) == 1024
    assert min(ids) >= 100
    assert max(ids) < 400
    assert len(set(ids)) > 250


def test_words_are_as_many_as_asked_and_common() -> None:
    words = WordWriter(seed=0).write([Segment(0, 0, 10), Segment(1, 0, 2)]).split(" ")

    assert len(words) == 12
    assert set(words) <= set(WORDS)


def test_the_same_segments_give_the_same_prompt() -> None:
    segments = [Segment(0, 0, 10), Segment(1, 3, 10)]

    assert TokenIdWriter(400, seed=1).write(segments) == TokenIdWriter(400, seed=1).write(segments)
    assert WordWriter(seed=1).write(segments) == WordWriter(seed=1).write(segments)


@pytest.mark.parametrize("other", [Segment(1, 3, 10), Segment(0, 4, 10)], ids=["space", "key"])
def test_other_segments_give_other_tokens(other: Segment) -> None:
    writer = TokenIdWriter(400, seed=1)

    assert writer.write([Segment(0, 3, 10)]) != writer.write([other])


def test_another_seed_gives_other_tokens() -> None:
    segment = [Segment(0, 0, 10)]

    assert TokenIdWriter(400, seed=1).write(segment) != TokenIdWriter(400, seed=2).write(segment)


def test_a_longer_segment_of_the_same_key_begins_with_the_shorter() -> None:
    writer = TokenIdWriter(400, seed=1)

    assert writer.write([Segment(0, 0, 20)])[:10] == writer.write([Segment(0, 0, 10)])


def test_a_vocabulary_needs_four_ids() -> None:
    with pytest.raises(ConfigurationError, match="vocabulary size is 3"):
        TokenIdWriter(3, seed=0)
