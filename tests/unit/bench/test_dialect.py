import pytest

from atomesh.bench.dialect import Call, Dialect, notices, payload, without_refused
from atomesh.bench.failures import RequestFailed

CALL = Call("m", [1, 2], 5, temperature=0.0)
TEXT_CALL = Call("m", "hi", 5, temperature=0.5)


def refused(message: str, *, status: int | None = 400, param: str | None = None) -> RequestFailed:
    return RequestFailed(f"HTTP {status}", message, status=status, param=param)


def test_a_completion_asks_for_all_it_can() -> None:
    assert payload(CALL, "completions", Dialect()) == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_a_chat_is_one_message_of_the_user() -> None:
    assert payload(TEXT_CALL, "chat", Dialect(continuous_usage=False)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "temperature": 0.5,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }


def test_the_least_that_can_be_asked() -> None:
    least = Dialect(continuous_usage=False, ignore_eos=False, max_tokens=False, usage=False)

    assert payload(Call("m", "hi", 5), "chat", least) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 5,
        "stream": True,
    }


def test_completions_have_no_other_name_for_max_tokens() -> None:
    assert payload(CALL, "completions", Dialect(max_tokens=False))["max_tokens"] == 5


def test_the_end_of_an_answer_may_be_left_to_the_model() -> None:
    assert "ignore_eos" not in payload(Call("m", "hi", 5, ignore_eos=False), "chat", Dialect())


@pytest.mark.parametrize(
    ("failure", "left"),
    [
        (refused("unknown field ignore_eos"), Dialect(ignore_eos=False)),
        (refused("no", param="stream_options.continuous_usage_stats"), Dialect(continuous_usage=False)),
        (refused("use max_completion_tokens, not max_tokens"), Dialect(max_tokens=False)),
        (refused("bad request"), Dialect(continuous_usage=False)),
        (refused("bad request", status=422), Dialect(continuous_usage=False)),
    ],
)
def test_what_is_refused_is_given_up(failure: RequestFailed, left: Dialect) -> None:
    assert without_refused(Dialect(), failure) == left


@pytest.mark.parametrize("status", [None, 401, 404, 429, 500, 503])
def test_other_failures_are_no_refusal(status: int | None) -> None:
    assert without_refused(Dialect(), refused("ignore_eos", status=status)) is None


def test_an_unnamed_refusal_is_answered_by_less_and_less_until_nothing_is_left() -> None:
    dialect: Dialect | None = Dialect()
    steps = 0
    while dialect is not None:
        dialect = without_refused(dialect, refused("bad request"))
        steps += 1

    assert steps == 5


def test_notices_say_what_changes_the_figures() -> None:
    assert notices(Dialect(continuous_usage=False, max_tokens=False)) == []
    assert [words.split(":")[0] for words in notices(Dialect(usage=False, ignore_eos=False))] == [
        "the server refuses stream_options",
        "the server refuses ignore_eos",
    ]
