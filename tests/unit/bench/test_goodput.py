import pytest

from atomesh.bench.goodput import Objectives, parse_objectives
from atomesh.bench.record import RequestTimes
from atomesh.errors import ConfigurationError

TIMES = RequestTimes(ttft=0.5, tpot=0.05, itl=(), e2el=2.0)


def test_milliseconds_become_seconds() -> None:
    assert parse_objectives(["ttft:500", "tpot:12.5", "e2el:2000"]).bounds == {
        "ttft": 0.5,
        "tpot": 0.0125,
        "e2el": 2.0,
    }


@pytest.mark.parametrize(
    ("texts", "are_met"),
    [
        (["ttft:500", "tpot:50", "e2el:2000"], True),
        (["ttft:499"], False),
        (["ttft:500", "tpot:49"], False),
        (["e2el:1999"], False),
        ([], True),
    ],
)
def test_a_request_is_good_when_it_meets_every_bound(texts: list[str], are_met: bool) -> None:
    assert parse_objectives(texts).are_met_by(TIMES) is are_met


def test_a_single_token_meets_any_bound_on_the_time_per_token() -> None:
    assert Objectives({"tpot": 0.001}).are_met_by(RequestTimes(0.5, None, (), 0.5))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("itl:5", "'itl:5' is unknown"),
        ("ttft", "needs a number"),
        ("ttft:fast", "needs a number"),
        ("ttft:0", "needs a number"),
        ("ttft:nan", "needs a number"),
    ],
)
def test_nonsense_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_objectives([text])


def test_an_objective_given_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        parse_objectives(["ttft:5", "ttft:6"])
