"""Completions by the real openai client on both shapes: batches with echo, n and logprobs line up."""

from itertools import accumulate

import pytest

from atomesh.testing.wire import Wire

PROMPTS = ["The capital of France is", "Water boils at", "Größe: 5 km\n"]


def complete(stack: Wire, **fields):
    return stack.client.completions.create(**{"model": stack.model, "temperature": 0, **fields})


@pytest.mark.parametrize("as_ids", [False, True], ids=["texts", "ids"])
def test_a_batch_with_echo_and_several_choices_lines_up(stack: Wire, as_ids: bool) -> None:
    ids = [tokenize(stack, text) for text in PROMPTS]
    answer = complete(
        stack,
        prompt=ids if as_ids else PROMPTS,
        n=2,
        echo=True,
        logprobs=2,
        max_tokens=3,
        temperature=0.8,
        seed=5,
        extra_body={"return_token_ids": True},
    )
    assert [choice.index for choice in answer.choices] == list(range(6))
    for choice in answer.choices:
        prompt = choice.index // 2
        assert choice.text.startswith(PROMPTS[prompt])
        assert choice.model_extra["prompt_token_ids"] == ids[prompt]
        assert_aligned(choice, len(ids[prompt]) + len(choice.model_extra["token_ids"]))
    first, second = answer.choices[0].logprobs, answer.choices[1].logprobs
    echoed = len(ids[0])
    assert first.token_logprobs[:echoed] == second.token_logprobs[:echoed]
    assert answer.usage.prompt_tokens == sum(map(len, ids))


def assert_aligned(choice, count: int) -> None:
    """Four lists of `count` entries; each token lies in the text where its offset says."""
    told = choice.logprobs
    assert [len(told.tokens), len(told.token_logprobs), len(told.top_logprobs), len(told.text_offset)] == [
        count
    ] * 4
    assert told.token_logprobs[0] is None
    assert told.top_logprobs[0] is None
    assert None not in told.token_logprobs[1:]
    if "\ufffd" not in "".join(told.tokens):
        assert told.text_offset == [0, *accumulate(map(len, told.tokens[:-1]))]
        assert choice.text == "".join(told.tokens)
    else:
        assert told.text_offset == sorted(told.text_offset)
        assert told.text_offset[-1] <= len(choice.text)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_one_entry_for_each_token_that_was_sent_and_said(stack: Wire, max_tokens: int) -> None:
    """What a log-likelihood evaluation counts on: nothing is cut, nothing is added."""
    ids = [tokenize(stack, text) for text in PROMPTS]
    answer = complete(stack, prompt=ids, echo=True, logprobs=1, max_tokens=max_tokens)
    for sent, choice in zip(ids, answer.choices, strict=True):
        assert_aligned(choice, len(sent) + max_tokens)
    assert answer.usage.completion_tokens == max_tokens * len(ids)


def test_a_first_token_that_ends_the_answer_is_still_an_entry(stack: Wire) -> None:
    (end,) = tokenize(stack, "<|im_end|>")
    ids = tokenize(stack, PROMPTS[0])
    answer = complete(
        stack, prompt=ids, echo=True, logprobs=1, max_tokens=1, extra_body={"allowed_token_ids": [end]}
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.text == PROMPTS[0]
    assert len(choice.logprobs.token_logprobs) == len(ids) + 1
    assert choice.logprobs.text_offset[-1] == len(PROMPTS[0])


def test_a_batch_streams_what_it_answers_whole(stack: Wire) -> None:
    asked = {"prompt": PROMPTS, "echo": True, "logprobs": 1, "max_tokens": 4}
    asked |= {"n": 2, "temperature": 0.8, "seed": 5}
    whole = complete(stack, **asked)
    texts, tokens, offsets, ends = ([kind() for _ in whole.choices] for kind in (str, list, list, list))
    for chunk in complete(stack, **asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
            offsets[choice.index] += choice.logprobs.text_offset
            ends[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]
    assert ends == [[choice.finish_reason] for choice in whole.choices]


def test_the_same_text_on_both_shapes(clients, default_server, default_pair) -> None:
    asked = {"prompt": PROMPTS, "max_tokens": 12, "temperature": 0}
    told = [
        [
            choice.text
            for choice in clients(server.url).completions.create(model=server.model, **asked).choices
        ]
        for server in (default_server, default_pair)
    ]
    assert told[0] == told[1]


def tokenize(stack: Wire, text: str) -> list[int]:
    answer = stack.client.post(f"{stack.url}/tokenize", cast_to=object, body={"prompt": text})
    return answer["tokens"]
