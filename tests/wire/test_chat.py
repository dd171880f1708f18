"""POST /v1/chat/completions through the openai client, on any server."""

import openai
import pytest

from atomesh.testing.wire import Wire

HELLO = [{"role": "user", "content": "Say hello to the world."}]


def test_an_answer_has_the_api_s_shape(wire: Wire) -> None:
    answer = wire.client.chat.completions.create(
        model=wire.model, messages=HELLO, max_tokens=6, temperature=0
    )
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == wire.model
    assert answer.system_fingerprint.startswith("fp_")
    (choice,) = answer.choices
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 6
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_stream_joins_to_the_whole_answer(wire: Wire) -> None:
    asked = {"model": wire.model, "messages": HELLO, "max_tokens": 20, "temperature": 0}
    whole = wire.client.chat.completions.create(**asked)
    chunks = list(
        wire.client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    *spoken, last = chunks
    assert "".join(c.choices[0].delta.content or "" for c in spoken) == whole.choices[0].message.content
    assert [c.choices[0].delta.role for c in spoken] == ["assistant"] + [None] * (len(spoken) - 1)
    assert [c.choices[0].finish_reason for c in spoken if c.choices[0].finish_reason] == ["length"]
    assert {(c.id, c.created, c.model, c.object) for c in chunks} == {
        (last.id, last.created, wire.model, "chat.completion.chunk")
    }
    assert last.choices == []
    assert last.usage.completion_tokens == 20
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(c.usage is None for c in spoken)


def test_continuous_usage_counts_up_on_every_chunk(wire: Wire) -> None:
    chunks = list(
        wire.client.chat.completions.create(
            model=wire.model,
            messages=HELLO,
            max_tokens=5,
            temperature=0,
            stream=True,
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-1] == 5


def test_without_include_usage_no_chunk_has_any(wire: Wire) -> None:
    stream = wire.client.chat.completions.create(model=wire.model, messages=HELLO, max_tokens=3, stream=True)
    assert all(chunk.usage is None and chunk.choices for chunk in stream)


def test_logprobs_carry_bytes_and_the_likeliest(wire: Wire) -> None:
    answer = wire.client.chat.completions.create(
        model=wire.model, messages=HELLO, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 4
    for entry in content:
        assert entry.logprob <= 0.0
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert entry.top_logprobs[0].token == entry.token
        logprobs = [top.logprob for top in entry.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)


def test_streamed_logprobs_equal_the_whole_ones(wire: Wire) -> None:
    asked = {"model": wire.model, "messages": HELLO, "max_tokens": 6, "temperature": 0, "logprobs": True}
    whole = wire.client.chat.completions.create(**asked)
    streamed = [
        entry
        for chunk in wire.client.chat.completions.create(**asked, stream=True)
        for entry in chunk.choices[0].logprobs.content
    ]
    expected = whole.choices[0].logprobs.content
    assert [e.token for e in streamed] == [e.token for e in expected]
    assert [e.logprob for e in streamed] == pytest.approx([e.logprob for e in expected], abs=1e-3)
    assert all(e.top_logprobs == [] for e in streamed)


def test_n_answers_are_indexed_and_differ(wire: Wire) -> None:
    asked = {"model": wire.model, "messages": HELLO, "max_tokens": 12, "n": 3, "seed": 7, "temperature": 1.5}
    whole = wire.client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    roles = [0, 0, 0]
    for chunk in wire.client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
    assert streamed == texts
    assert roles == [1, 1, 1]


def test_a_seed_repeats_and_another_differs(wire: Wire) -> None:
    def say(seed: int | None) -> str:
        answer = wire.client.chat.completions.create(
            model=wire.model, messages=HELLO, max_tokens=24, temperature=1.2, seed=seed
        )
        return answer.choices[0].message.content

    assert say(5) == say(5)
    assert say(5) != say(6)
    assert say(None) != say(None)


def test_a_stop_string_ends_the_text_before_itself(wire: Wire) -> None:
    asked = {"model": wire.model, "messages": HELLO, "max_tokens": 40, "temperature": 0}
    full = wire.client.chat.completions.create(**asked).choices[0].message.content
    stop = full[5:8]
    assert len(stop) == 3
    expected = full[: full.index(stop)]
    whole = wire.client.chat.completions.create(**asked, stop=[stop, "never said"]).choices[0]
    assert whole.message.content == expected
    assert whole.finish_reason == "stop"
    assert whole.model_extra["stop_reason"] == stop
    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in wire.client.chat.completions.create(**asked, stop=stop, stream=True)
    )
    assert streamed == expected
    included = wire.client.chat.completions.create(
        **asked, stop=stop, extra_body={"include_stop_str_in_output": True}
    )
    assert included.choices[0].message.content == expected + stop


def test_max_completion_tokens_outranks_max_tokens(wire: Wire) -> None:
    answer = wire.client.chat.completions.create(
        model=wire.model, messages=HELLO, max_tokens=9, max_completion_tokens=3, temperature=0
    )
    assert answer.usage.completion_tokens == 3


def test_text_parts_are_read_like_a_text(wire: Wire) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": HELLO[0]["content"]}]}]
    asked = {"model": wire.model, "max_tokens": 8, "temperature": 0}
    plain = wire.client.chat.completions.create(messages=HELLO, **asked)
    split = wire.client.chat.completions.create(messages=parts, **asked)
    assert split.choices[0].message.content == plain.choices[0].message.content
    assert split.usage.prompt_tokens == plain.usage.prompt_tokens


def test_return_token_ids_tells_prompt_and_answer(wire: Wire) -> None:
    asked = {"model": wire.model, "messages": HELLO, "max_tokens": 5, "temperature": 0}
    whole = wire.client.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    assert len(whole.model_extra["prompt_token_ids"]) == whole.usage.prompt_tokens
    assert len(whole.choices[0].model_extra["token_ids"]) == 5
    chunks = list(
        wire.client.chat.completions.create(**asked, stream=True, extra_body={"return_token_ids": True})
    )
    assert chunks[0].model_extra["prompt_token_ids"] == whole.model_extra["prompt_token_ids"]
    ids = [token_id for chunk in chunks for token_id in chunk.choices[0].model_extra["token_ids"]]
    assert ids == whole.choices[0].model_extra["token_ids"]


def test_the_raw_response_has_our_headers(wire: Wire) -> None:
    raw = wire.client.chat.completions.with_raw_response.create(
        model=wire.model, messages=HELLO, max_tokens=2, extra_headers={"x-request-id": "my.label-1"}
    )
    assert raw.headers["x-request-id"] == "my.label-1"
    assert raw.headers["x-serving-path"] in {"unified", "prefill-decode"}  # by the shape of the server
    assert "queue;dur=" in raw.headers["server-timing"]
    assert "decode;dur=" in raw.headers["server-timing"]


def test_an_unknown_model_is_not_found(wire: Wire) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        wire.client.chat.completions.create(model="no/such-model", messages=HELLO)
    assert caught.value.body["type"] == "model_not_found"
    assert caught.value.body["code"] == "model_not_found"
    assert caught.value.body["param"] == "model"


def test_logprobs_name_tokens_by_id_on_demand(wire: Wire) -> None:
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    choice = (
        wire.client.chat.completions.create(
            model=wire.model, messages=HELLO, max_tokens=3, logprobs=True, extra_body=extra
        )
    ).choices[0]
    told = [entry.token for entry in choice.logprobs.content]
    assert told == [f"token_id:{i}" for i in choice.model_extra["token_ids"]]
