"""A8: an answer's thoughts begin, are limited and end the same for one worker and for two that share it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import OpenAI

from atomesh.testing.pd_bench import ONE_AND_ONE, UNIFIED, PDBench, pd_bench
from atomesh.testing.thinking_model import END_THINK, THINK, write_thinking_model

ASK = [{"role": "user", "content": "One two three four five six seven eight nine ten. " * 6}]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PDBench, PDBench]]:
    """One worker that does both, and two."""
    model = write_thinking_model(tmp_path_factory.mktemp("model") / "thinker")
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(pd_bench(model, tmp_path_factory.mktemp("home"), shape))
            for shape in (UNIFIED, ONE_AND_ONE)
        )
        yield one, two


def ask(bench: PDBench, **fields: Any) -> dict[str, Any]:
    body = {
        "messages": ASK,
        "seed": 5,
        "max_tokens": 24,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }
    answer = bench.served.request("POST", "/v1/chat/completions", {"model": bench.served.model, **body})
    assert answer.status == 200, answer.body
    return answer.body


def told(answer: dict[str, Any]) -> list[Any]:
    """What a client reads of it."""
    return [(each["message"], each["token_ids"], each["finish_reason"]) for each in answer["choices"]] + [
        answer["usage"]["completion_tokens_details"]
    ]


@pytest.mark.parametrize("budget", [0, 1, 2, 9])
@pytest.mark.parametrize("n", [1, 2])
def test_a8_a_budget_ends_thoughts_at_its_token(both: tuple[PDBench, PDBench], budget: int, n: int) -> None:
    answers = [ask(bench, thinking_token_budget=budget, n=n) for bench in both]
    assert told(answers[0]) == told(answers[1])
    for choice in answers[1]["choices"]:
        ids = choice["token_ids"]
        assert ids.index(END_THINK) == budget
        assert len(ids) == 24
        assert ("reasoning" in choice["message"]) == (budget > 0)
        assert choice["message"].get("reasoning") == choice["message"].get("reasoning_content")
    assert answers[1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": n * budget}


def test_a8_what_is_cut_within_a_thought_says_nothing(both: tuple[PDBench, PDBench]) -> None:
    answers = [ask(bench, logit_bias={str(END_THINK): -100}) for bench in both]
    assert told(answers[0]) == told(answers[1])
    choice = answers[1]["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert answers[1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 24}


def test_a8_no_effort_is_no_thought(both: tuple[PDBench, PDBench]) -> None:
    answers = [ask(bench, reasoning_effort="none", logit_bias={str(THINK): -100}) for bench in both]
    assert told(answers[0]) == told(answers[1])
    assert "reasoning" not in answers[1]["choices"][0]["message"]


@pytest.mark.parametrize("budget", [0, 1, 2, 9])
def test_a8_a_grammar_begins_where_the_thought_has_ended(both: tuple[PDBench, PDBench], budget: int) -> None:
    fields = {"structured_outputs": {"choice": ["yes", "nope"]}, "ignore_eos": False}
    answers = [ask(bench, thinking_token_budget=budget, **fields) for bench in both]
    assert told(answers[0]) == told(answers[1])
    choice = answers[1]["choices"][0]
    assert choice["token_ids"].index(END_THINK) == budget
    assert choice["message"]["content"] in ("yes", "nope")
    assert choice["finish_reason"] == "stop"


def test_a8_thoughts_that_the_prompt_has_not_opened_are_opened_before_a_grammar(
    both: tuple[PDBench, PDBench],
) -> None:
    fields = {"structured_outputs": {"choice": ["yes", "nope"]}, "ignore_eos": False}
    answers = [ask(one, add_generation_prompt=False, thinking_token_budget=3, **fields) for one in both]
    assert told(answers[0]) == told(answers[1])
    choice = answers[1]["choices"][0]
    assert choice["token_ids"][0] == THINK
    assert choice["token_ids"].index(END_THINK) == 4
    assert choice["message"]["content"] in ("yes", "nope")
    assert answers[1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_a8_a_stream_tells_what_a_whole_answer_tells(both: tuple[PDBench, PDBench]) -> None:
    for bench in both:
        whole = ask(bench, thinking_token_budget=7)["choices"][0]["message"]
        with OpenAI(base_url=f"http://127.0.0.1:{bench.served.port}/v1", api_key="none") as client:
            chunks = client.chat.completions.create(
                model=bench.served.model,
                messages=ASK,  # type: ignore[arg-type]
                seed=5,
                max_tokens=24,
                stream=True,
                extra_body={"thinking_token_budget": 7, "ignore_eos": True},
            )
            deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks]
        assert "".join(delta.get("content") or "" for delta in deltas) == whole["content"]
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == whole["reasoning"]
