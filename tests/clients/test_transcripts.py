"""What load generators, evaluation suites and proxies send, field by field, and how they read the answer.

The requests lie in transcripts/, with the version and the source they were read from. Each test demands what
the tool's own parser demands of an answer before it counts as a success.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from atomesh.testing.raw_http import RawResponse, send
from atomesh.testing.wire import Wire

TRANSCRIPTS = {
    file.stem: json.loads(file.read_text()) for file in Path(__file__).with_name("transcripts").glob("*.json")
}
TOKENS = 6  # what most of the requests ask for


def play(stack: Wire, tool: str, name: str) -> RawResponse:
    """The answer to one request of a transcript; 200, and read to its proper end."""
    request = TRANSCRIPTS[tool]["requests"][name]
    body = json.loads(json.dumps(request["body"]).replace("$MODEL", stack.model))
    answer = send(stack.url, "POST", request["path"], body, request.get("headers"))
    assert answer.status == 200, answer.body
    assert answer.is_complete
    return answer


def of(tool: str, *beginnings: str) -> pytest.MarkDecorator:
    """The requests of a tool whose names begin so, as parameters."""
    names = [name for name in TRANSCRIPTS[tool]["requests"] if name.startswith(beginnings)]
    return pytest.mark.parametrize("name", names)


def messages(body: bytes) -> list[str]:
    """A stream cut at empty lines; what begins with a colon is no message."""
    cut = [message.strip() for message in body.decode().split("\n\n")]
    return [message for message in cut if message and not message.startswith(":")]


def chunks(body: bytes) -> list[dict[str, Any]]:
    """The JSON of a stream that ends as it should."""
    *told, done = messages(body)
    assert done == "data: [DONE]"
    return [json.loads(message.removeprefix("data: ")) for message in told]


@of("vllm_bench", "completions", "chat")
def test_vllm_bench_counts_a_success(stack: Wire, name: str) -> None:
    """The first choice of each chunk that has any; usage of the chunk that has none."""
    texts, usage = [], None
    answer = play(stack, "vllm_bench", name)
    for chunk in chunks(answer.body):
        if chunk["choices"]:
            choice = chunk["choices"][0]
            texts.append(choice["text"] if name.startswith("completions") else choice["delta"].get("content"))
        elif chunk.get("usage"):
            usage = chunk["usage"]
    assert len(texts) == TOKENS
    assert "".join(text or "" for text in texts)
    assert usage is not None
    assert usage["completion_tokens"] == TOKENS
    assert usage["prompt_tokens"] > 0
    label = TRANSCRIPTS["vllm_bench"]["requests"][name]["headers"]["x-request-id"]
    assert answer.headers["x-request-id"] == label


def test_vllm_bench_reads_responses(stack: Wire) -> None:
    """Text deltas by the type of the event, and a terminal event with usage."""
    texts, usage = [], None
    for message in messages(play(stack, "vllm_bench", "responses").body):
        data = [line.removeprefix("data: ") for line in message.split("\n") if line.startswith("data:")]
        if not data or data == ["[DONE]"]:
            continue
        event = json.loads("\n".join(data))
        assert event["type"] not in {"error", "response.failed"}
        if event["type"] == "response.output_text.delta":
            texts.append(event["delta"])
        elif event["type"] in {"response.completed", "response.incomplete"}:
            usage = event["response"]["usage"]
    assert "".join(texts)
    assert usage is not None
    assert usage["output_tokens"] == TOKENS
    assert usage["input_tokens"] > 0


def test_vllm_bench_finds_the_model(stack: Wire) -> None:
    listed = send(stack.url, "GET", "/v1/models").json()["data"][0]
    assert (listed["id"], listed["root"]) == (stack.model, stack.model)


@of("guidellm", "completions", "chat")
def test_guidellm_counts_tokens(stack: Wire, name: str) -> None:
    """Lines that begin with data:; an error in one fails the request; the last usage counts."""
    body = play(stack, "guidellm", name).body
    if name.endswith("whole"):
        answer = json.loads(body)
        assert answer["choices"][0]["text"]
        assert answer["usage"]["completion_tokens"] == TOKENS
        return
    texts, usages = [], []
    for line in body.decode().splitlines():
        data = line.strip().removeprefix("data:").strip()
        if not line.strip().startswith("data:") or data == "[DONE]":
            continue
        chunk = json.loads(data)
        assert not chunk.get("error")
        assert chunk["id"]
        usages.append(chunk["usage"]["completion_tokens"])
        first = chunk["choices"][:1]
        texts += [one.get("text") or one.get("delta", {}).get("content") or "" for one in first]
    assert "".join(texts)
    assert usages == sorted(usages)
    assert usages[-1] == TOKENS


def test_guidellm_asks_for_health_first(stack: Wire) -> None:
    assert send(stack.url, "GET", "/health").status == 200
    assert [one["id"] for one in send(stack.url, "GET", "/v1/models").json()["data"]] == [stack.model]


@of("aiperf", "chat", "completions")
def test_aiperf_knows_the_object(stack: Wire, name: str) -> None:
    """What does not say which object it is counts as no answer at all."""
    body = play(stack, "aiperf", name).body
    told = [json.loads(body)] if name.endswith("whole") else chunks(body)
    kind = "chat.completion.chunk" if name.startswith("chat") else "text_completion"
    assert {chunk["object"] for chunk in told} == {kind}
    spoken = [chunk["choices"][0] for chunk in told if chunk["choices"]]
    texts = [one["text"] if "text" in one else one["delta"].get("content") for one in spoken]
    assert any(texts)
    prompts = 2 if name.endswith("whole") else 1
    assert told[-1]["usage"]["completion_tokens"] == TOKENS * prompts


@of("genai_bench", "chat")
def test_genai_bench_waits_for_usage_after_the_end(stack: Wire, name: str) -> None:
    """A chunk with a finish reason and then one with usage and no choices; text must have come before it."""
    text, finish_reason, usage = "", None, None
    for chunk in chunks(play(stack, "genai_bench", name).body):
        assert chunk.get("error") is None
        if not chunk["choices"]:
            assert finish_reason is not None
            usage = chunk["usage"]
            break
        choice = chunk["choices"][0]
        text += choice["delta"].get("content") or ""
        finish_reason = choice.get("finish_reason")
    asked = TRANSCRIPTS["genai_bench"]["requests"][name]["body"]["max_tokens"]
    assert text
    assert usage is not None
    assert usage["completion_tokens"] == asked


def test_lm_eval_takes_our_tokenizer_for_its_own(stack: Wire) -> None:
    info = send(stack.url, "GET", "/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>"
    assert "chat_template" in info
    tokens = play(stack, "lm_eval", "tokenize").json()["tokens"]
    assert all(isinstance(token, int) for token in tokens)
    assert send(stack.url, "POST", "/detokenize", {"tokens": tokens}).json()["prompt"] == "test"


def test_lm_eval_sums_what_follows_the_context(stack: Wire) -> None:
    """Of each choice, by index: the numbers after the context but the last; whether each is the largest."""
    answer = play(stack, "lm_eval", "log-likelihood").json()
    context = 4
    told = list(read_sums(answer["choices"], context))
    assert len(told) == 2
    assert all(total < 0 for total, _ in told)
    assert told[0][0] < told[1][0]  # the same beginning, with one token more
    assert [is_greedy for _, is_greedy in told] == [True, True]  # "The capital of France is Paris"


def read_sums(choices: Sequence[Mapping[str, Any]], context: int) -> Iterator[tuple[float, bool]]:
    for choice in sorted(choices, key=itemgetter("index")):
        own = choice["logprobs"]["token_logprobs"][context:-1]
        top = choice["logprobs"]["top_logprobs"][context:-1]
        yield sum(own), all(mine == max(best.values()) for mine, best in zip(own, top, strict=True))


@of("lm_eval", "generation", "chat")
def test_lm_eval_reads_each_generation_by_its_index(stack: Wire, name: str) -> None:
    choices = play(stack, "lm_eval", name).json()["choices"]
    texts: list[str | None] = [None] * len(choices)
    for choice in choices:
        texts[choice["index"]] = choice["text"] if name == "generation" else choice["message"]["content"]
    assert len(texts) == (2 if name == "generation" else 1)
    assert None not in texts


@of("litellm", "chat", "completions")
def test_litellm_makes_its_own_answer_of_ours(stack: Wire, name: str) -> None:
    body = play(stack, "litellm", name).body
    told = chunks(body) if name.endswith("streamed") else [json.loads(body)]
    assert {chunk["id"] for chunk in told} == {told[0]["id"]}
    assert all(isinstance(chunk["created"], int) and chunk["model"] == stack.model for chunk in told)
    finished = [choice["finish_reason"] for chunk in told for choice in chunk["choices"]]
    assert finished[-1] in {"stop", "length"}
    usage = told[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@of("open_webui", "chat", "title")
def test_open_webui_shows_what_it_reads(stack: Wire, name: str) -> None:
    """A stream is known by its content type and read line by line; usage from any chunk that has it."""
    answer = play(stack, "open_webui", name)
    if name == "title":
        assert answer.json()["choices"][0]["message"]["content"]
        return
    assert "text/event-stream" in answer.headers["content-type"]
    told = chunks(answer.body)
    assert "".join(choice["delta"].get("content", "") for chunk in told for choice in chunk["choices"])
    assert [chunk["usage"]["completion_tokens"] for chunk in told if chunk.get("usage")] == [TOKENS]


@pytest.mark.parametrize("tool", TRANSCRIPTS)
def test_a_transcript_says_where_it_is_from(tool: str) -> None:
    transcript = TRANSCRIPTS[tool]
    assert list(transcript) == ["tool", "version", "source", "requests"]
    assert transcript["version"]
    assert ".py" in transcript["source"]
