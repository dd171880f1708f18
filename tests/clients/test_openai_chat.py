"""Chats by the real openai client on both shapes: whole, streamed, by its stream helper, asynchronously."""

import asyncio

import openai
import pytest

from atomesh.testing.wire import Wire

TALK = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Name a colour of the sky."},
]


def ask(stack: Wire, **fields):
    asked = {"model": stack.model, "messages": TALK, "max_tokens": 12, "temperature": 0, **fields}
    return stack.client.chat.completions.create(**asked)


def test_models_are_listed_and_found(stack: Wire) -> None:
    (listed,) = stack.client.models.list().data
    found = stack.client.models.retrieve(stack.model)
    assert (listed.id, listed.object, listed.owned_by) == (stack.model, "model", found.owned_by)
    assert found.model_extra["max_model_len"] == 2048


def test_a_chat_is_answered_whole_and_streamed_alike(stack: Wire) -> None:
    whole = ask(stack).choices[0]
    with ask(stack, stream=True) as stream:
        chunks = list(stream)
    assert whole.message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == whole.finish_reason


def test_the_stream_helper_gathers_the_same_answer(stack: Wire) -> None:
    whole = ask(stack, max_tokens=80, stop=["."])
    with stack.client.chat.completions.stream(
        model=stack.model,
        messages=TALK,
        max_tokens=80,
        stop=["."],
        temperature=0,
        stream_options={"include_usage": True},
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "content.delta"]
    (done,) = [event for event in events if event.type == "content.done"]
    assert "".join(event.delta for event in deltas) == done.content == whole.choices[0].message.content
    assert final.choices[0].message.content == done.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_the_stream_helper_reads_logprobs(stack: Wire) -> None:
    whole = ask(stack, logprobs=True, top_logprobs=2, max_tokens=5).choices[0].logprobs.content
    with stack.client.chat.completions.stream(
        model=stack.model, messages=TALK, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    ) as stream:
        (done,) = [event for event in stream if event.type == "logprobs.content.done"]
    assert [entry.token for entry in done.content] == [entry.token for entry in whole]
    assert [entry.logprob for entry in done.content] == pytest.approx(
        [entry.logprob for entry in whole], abs=1e-4
    )


def test_several_choices_are_streamed_by_index(stack: Wire) -> None:
    fields = {"n": 3, "temperature": 0.9, "seed": 11}
    whole = ask(stack, **fields)
    told = ["", "", ""]
    for chunk in ask(stack, stream=True, **fields):
        for choice in chunk.choices:
            told[choice.index] += choice.delta.content or ""
    assert told == [choice.message.content for choice in whole.choices]


def test_a_raw_response_has_headers_and_parses(stack: Wire) -> None:
    raw = stack.client.chat.completions.with_raw_response.create(
        model=stack.model, messages=TALK, max_tokens=3, temperature=0
    )
    assert raw.headers["x-request-id"]
    assert raw.headers["x-serving-path"] in {"unified", "prefill-decode"}
    assert raw.parse().choices[0].finish_reason == "length"


def test_a_streaming_response_is_read_line_by_line(stack: Wire) -> None:
    with stack.client.chat.completions.with_streaming_response.create(
        model=stack.model, messages=TALK, max_tokens=3, temperature=0, stream=True
    ) as response:
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_a_client_that_leaves_a_stream_can_ask_again(stack: Wire) -> None:
    stream = ask(stack, stream=True, max_tokens=200)
    next(iter(stream))
    stream.close()
    assert ask(stack, max_tokens=2).usage.completion_tokens == 2


def test_the_asynchronous_client_asks_for_many_at_once(stack: Wire) -> None:
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model=stack.model,
                    messages=[{"role": "user", "content": f"Count to {number}."}],
                    max_tokens=6,
                    temperature=0,
                    stream=True,
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(2, 6)))

    texts = asyncio.run(ask_all())
    assert len(texts) == 4
    assert all(texts)
