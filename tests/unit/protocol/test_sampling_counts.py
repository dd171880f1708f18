"""How many of a thing there may be is asked before any of them is looked at: a million cost nothing."""

from collections.abc import Iterator

import pytest

from atomesh.errors import InvalidRequestError
from atomesh.protocol.sampling import SamplingParams


class Untouched(list[str]):
    """A list that is only ever counted."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("it was walked through")


class UntouchedBias(dict[int, float]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it was walked through")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("stop", Untouched(["a"] * 65), "stop has 65 strings; the limit is 64: send fewer"),
        ("bad_words", Untouched(["a"] * 1025), "bad_words has 1025 strings; the limit is 1024: send fewer"),
        (
            "logit_bias",
            UntouchedBias(dict.fromkeys(range(1025), 1.0)),
            "logit_bias has 1025 entries; the limit is 1024: send fewer",
        ),
    ],
    ids=["stop", "bad_words", "logit_bias"],
)
def test_too_many_are_counted_alone(name: str, value: object, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert (caught.value.message, caught.value.param) == (words, name)


def test_as_many_as_may_be() -> None:
    made = SamplingParams(stop=["a"] * 64, bad_words=["a"] * 1024, logit_bias=dict.fromkeys(range(1024), 1.0))
    assert len(made.stop_strings) == 64
