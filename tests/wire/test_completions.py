"""POST /v1/completions through the openai client, on any server: prompts in all forms, echo, logprobs."""

from typing import Any

import pytest

from atomesh.testing.raw_http import send
from atomesh.testing.wire import Wire


def tokens_of(wire: Wire, text: str) -> list[int]:
    tokens: list[int] = send(wire.url, "POST", "/tokenize", {"prompt": text}).json()["tokens"]
    return tokens


def complete(wire: Wire, **fields: Any) -> Any:
    return wire.client.completions.create(
        **{"model": wire.model, "temperature": 0, "max_tokens": 6, **fields}
    )


def test_a_text_and_its_ids_are_one_prompt(wire: Wire) -> None:
    by_text = complete(wire, prompt="Once upon a time")
    by_ids = complete(wire, prompt=tokens_of(wire, "Once upon a time"))
    assert by_text.id.startswith("cmpl-")
    assert by_text.object == "text_completion"
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.usage.prompt_tokens == by_ids.usage.prompt_tokens
    assert by_text.choices[0].finish_reason == "length"


def test_sixteen_tokens_are_the_default(wire: Wire) -> None:
    answer = wire.client.completions.create(
        model=wire.model, prompt="Once", temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize("as_ids", [False, True])
def test_several_prompts_are_answered_in_order(wire: Wire, as_ids: bool) -> None:
    texts = ["Once upon a time", "The sea is", "Paris"]
    prompts: Any = [tokens_of(wire, text) for text in texts] if as_ids else texts
    solo = [complete(wire, prompt=text) for text in texts]
    both = complete(wire, prompt=prompts)
    assert [choice.index for choice in both.choices] == [0, 1, 2]
    assert [choice.text for choice in both.choices] == [answer.choices[0].text for answer in solo]
    assert both.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in solo)
    assert both.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in solo)


def test_prompts_times_n_are_indexed_prompt_first(wire: Wire) -> None:
    asked: Any = {"prompt": ["Once upon", "The sea"], "n": 2, "temperature": 1.3, "seed": 3, "max_tokens": 12}
    whole = complete(wire, **asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    second = complete(wire, **{**asked, "prompt": "The sea"})
    assert [c.text for c in whole.choices[2:]] == [c.text for c in second.choices]
    assert whole.usage.prompt_tokens == sum(len(tokens_of(wire, text)) for text in asked["prompt"])
    streamed = [""] * 4
    finished = [0] * 4
    for chunk in complete(wire, **asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
            finished[choice.index] += choice.finish_reason is not None
    assert streamed == [choice.text for choice in whole.choices]
    assert finished == [1] * 4


def test_a_stream_joins_to_the_whole_answer_and_ends_with_usage(wire: Wire) -> None:
    whole = complete(wire, prompt="Once upon")
    *spoken, last = complete(wire, prompt="Once upon", stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].text for chunk in spoken) == whole.choices[0].text
    assert last.choices == []
    assert last.usage.completion_tokens == 6


def test_log_likelihood_evaluation(wire: Wire) -> None:
    """echo, logprobs 1, max_tokens 1 and ids: what evaluation suites send."""
    ids = tokens_of(wire, "The capital of France is Paris")
    answer = complete(wire, prompt=ids, echo=True, logprobs=1, max_tokens=1)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.token_logprobs) == len(ids) + 1
    assert len(logprobs.tokens) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == len(ids) + 1
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for logprob, top, token in zip(
        logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], logprobs.tokens[1:], strict=True
    ):
        assert logprob <= max(top.values()) <= 0.0
        assert top[token] >= logprob
    assert logprobs.token_logprobs[-1] == max(logprobs.top_logprobs[-1].values())
    for offset, token in zip(logprobs.text_offset[1:], logprobs.tokens[1:], strict=True):
        assert answer.choices[0].text.startswith(token, offset) or "\ufffd" in token


def test_echo_alone_gives_the_prompt_back(wire: Wire) -> None:
    text = "Once upon a time"
    bare = complete(wire, prompt=text)
    echoed = complete(wire, prompt=text, echo=True)
    assert echoed.choices[0].text == text + bare.choices[0].text
    assert echoed.choices[0].logprobs is None
    assert echoed.usage.completion_tokens == bare.usage.completion_tokens
    streamed = "".join(chunk.choices[0].text for chunk in complete(wire, prompt=text, echo=True, stream=True))
    assert streamed == echoed.choices[0].text


def test_no_tokens_at_all_are_allowed_with_echo(wire: Wire) -> None:
    ids = tokens_of(wire, "Once upon a time")
    answer = complete(wire, prompt="Once upon a time", echo=True, logprobs=2, max_tokens=0)
    (choice,) = answer.choices
    assert choice.text == "Once upon a time"
    assert choice.finish_reason == "length"
    assert len(choice.logprobs.token_logprobs) == len(ids)
    assert answer.usage.completion_tokens == 0
    assert answer.usage.prompt_tokens == len(ids)


def test_echo_with_logprobs_streams_the_same(wire: Wire) -> None:
    asked: Any = {"prompt": ["Once upon", "The sea"], "echo": True, "logprobs": 2, "max_tokens": 3}
    whole = complete(wire, **asked)
    texts, tokens, offsets = ["", ""], [[], []], [[], []]
    for chunk in complete(wire, **asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
            offsets[choice.index] += choice.logprobs.text_offset
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]


def test_logprobs_without_echo_cover_the_answer_only(wire: Wire) -> None:
    answer = complete(wire, prompt="Once upon", logprobs=3, max_tokens=4)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.token_logprobs) == 4
    assert logprobs.text_offset[0] == 0
    assert all(len(top) in (3, 4) for top in logprobs.top_logprobs)


def test_prompt_logprobs_are_keyed_by_token_id(wire: Wire) -> None:
    ids = tokens_of(wire, "Once upon a time")
    answer = complete(wire, prompt=ids, extra_body={"prompt_logprobs": 2})
    entries = answer.choices[0].model_extra["prompt_logprobs"]
    assert len(entries) == len(ids)
    assert entries[0] is None
    for token_id, entry in zip(ids[1:], entries[1:], strict=True):
        assert entry[str(token_id)]["logprob"] <= 0.0
        assert entry[str(token_id)]["rank"] >= 1
        assert len(entry) in (2, 3)


def test_truncation_keeps_the_end_of_the_prompt(wire: Wire) -> None:
    ids = tokens_of(wire, "Once upon a time")
    answer = complete(wire, prompt=ids, extra_body={"truncate_prompt_tokens": 3, "return_token_ids": True})
    assert answer.usage.prompt_tokens == 3
    assert answer.choices[0].model_extra["prompt_token_ids"] == ids[-3:]
    assert len(answer.choices[0].model_extra["token_ids"]) == 6


def test_truncation_rescues_a_text_beyond_the_context(wire: Wire) -> None:
    extra = {"truncate_prompt_tokens": 3, "return_token_ids": True}
    answer = complete(wire, prompt="word and " * 60_000, max_tokens=1, extra_body=extra)
    assert answer.choices[0].model_extra["prompt_token_ids"] == tokens_of(wire, "word and " * 9)[-3:]


def test_each_choice_has_the_echoed_prompt_s_logprobs(wire: Wire) -> None:
    answer = complete(wire, prompt="Once upon", echo=True, logprobs=1, n=2, temperature=1.0, max_tokens=2)
    first, second = (choice.logprobs for choice in answer.choices)
    count = answer.usage.prompt_tokens
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert getattr(first, name)[:count] == getattr(second, name)[:count]
    assert first.text_offset[count] == second.text_offset[count] == len("Once upon")


def test_the_answer_is_clamped_to_the_context(wire: Wire) -> None:
    limit = wire.client.models.list().data[0].model_extra["max_model_len"]
    answer = complete(wire, prompt=[65] * (limit - 2), max_tokens=50, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 2
    assert answer.choices[0].finish_reason == "length"


def test_a_stop_token_id_is_told_and_its_text_left_out(wire: Wire) -> None:
    plain = complete(wire, prompt="Once upon", max_tokens=12, extra_body={"return_token_ids": True})
    ids = plain.choices[0].model_extra["token_ids"]
    stop_id = next(token for token in ids if ids.index(token) >= 2)
    place = ids.index(stop_id)
    stopped = complete(
        wire,
        prompt="Once upon",
        max_tokens=12,
        extra_body={"return_token_ids": True, "stop_token_ids": [stop_id]},
    )
    (choice,) = stopped.choices
    assert choice.model_extra["token_ids"] == ids[: place + 1]
    assert choice.finish_reason == "stop"
    assert choice.model_extra["stop_reason"] == stop_id
    assert stopped.usage.completion_tokens == place + 1
    assert plain.choices[0].text.startswith(choice.text)
    assert len(choice.text) < len(plain.choices[0].text)


def test_logprobs_name_tokens_by_id_on_demand(wire: Wire) -> None:
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    choice = complete(wire, prompt="One two", logprobs=2, max_tokens=3, extra_body=extra).choices[0]
    assert choice.logprobs.tokens == [f"token_id:{i}" for i in choice.model_extra["token_ids"]]
    assert all(token.startswith("token_id:") for top in choice.logprobs.top_logprobs for token in top)
