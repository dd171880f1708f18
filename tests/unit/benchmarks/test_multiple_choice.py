"""How a multiple-choice task is asked and read, on numbers that one can add up."""

from typing import Any

import pytest
from multiple_choice import (
    Api,
    Candidate,
    Likelihood,
    Question,
    Score,
    ask_server,
    echo_request,
    encode_question,
    read_likelihood,
)

# Of a prompt of four tokens and one that was generated; the third was not the likeliest.
LOGPROBS = {
    "token_logprobs": [None, -1.0, -2.0, -0.25, -0.5],
    "top_logprobs": [None, {"a": -1.0}, {"b": -0.5, "c": -2.0}, {"d": -0.25}, {"e": -0.5}],
}


class ScriptedApi(Api):
    """A token a character; every choice of an answer has LOGPROBS, the last choice first."""

    def post(self, path: str, body: Any) -> Any:
        if path == "/tokenize":
            return {"tokens": [ord(character) for character in body["prompt"]]}
        count = len(body["prompt"])
        return {"choices": [{"index": place, "logprobs": LOGPROBS} for place in reversed(range(count))]}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (3, Likelihood(-0.25, is_greedy=True)),
        (2, Likelihood(-2.25, is_greedy=False)),
        (1, Likelihood(-3.25, is_greedy=False)),
        (4, Likelihood(0, is_greedy=True)),
    ],
)
def test_a_choice_is_what_lies_between_context_and_generated_token(start: int, expected: Likelihood) -> None:
    assert read_likelihood(LOGPROBS, start) == expected


def test_a_choice_s_tokens_begin_where_the_question_ends() -> None:
    question = Question("ab", ("c", "de"), 1)
    assert encode_question(ScriptedApi("", "m"), question) == [
        Candidate([97, 98, 99], 2),
        Candidate([97, 98, 100, 101], 2),
    ]


def test_choices_are_read_by_their_index() -> None:
    score = ask_server(ScriptedApi("", "m"), [[Candidate([1, 2, 3, 4], 3), Candidate([1, 2, 3, 4], 2)]])
    assert score == Score([[Likelihood(-0.25, is_greedy=True), Likelihood(-2.25, is_greedy=False)]])


def test_scores_are_compared_choice_by_choice() -> None:
    questions = [Question("a", ("b", "c"), 0), Question("a", ("b", "c"), 0)]
    ours = Score([[Likelihood(-1.0, True), Likelihood(-2.0, False)], [Likelihood(-3.0, False)] * 2])
    theirs = Score(
        [[Likelihood(-1.5, False), Likelihood(-1.25, False)], [Likelihood(-3, False), Likelihood(-4, False)]]
    )
    assert (ours.picks, theirs.picks) == ([0, 0], [1, 0])
    assert (ours.count_right(questions), theirs.count_right(questions)) == (2, 1)
    assert ours.largest_difference(theirs) == 1.0
    assert ours.count_other_flags(theirs) == 1


def test_the_request_asks_for_an_echo_of_ids() -> None:
    assert echo_request("m", [(1, 2)]) == {
        "model": "m",
        "prompt": [[1, 2]],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
