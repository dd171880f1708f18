"""litellm against a server, as hosted_vllm and as openai: URL MODEL."""

# ruff: noqa: S101  a check is an assertion

from typing import Any

import litellm
from checks import Server, run

TALK = [{"role": "user", "content": "Say hello."}]
PROVIDERS = ("hosted_vllm", "openai")


def ask(server: Server, provider: str, **fields: Any) -> Any:
    asked = {"messages": TALK, "max_tokens": 8, "temperature": 0, "num_retries": 0, **fields}
    return litellm.completion(
        model=f"{provider}/{server.model}", api_base=server.api, api_key="none", **asked
    )


def chat(server: Server) -> None:
    for provider in PROVIDERS:
        answer = ask(server, provider)
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens == 8


def stream(server: Server) -> None:
    for provider in PROVIDERS:
        whole = ask(server, provider).choices[0].message.content
        parts = ask(server, provider, stream=True, stream_options={"include_usage": True})
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == whole


def completion(server: Server) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{server.model}",
        api_base=server.api,
        api_key="none",
        prompt="The capital of France is",
        max_tokens=4,
        temperature=0,
    )
    assert answer.choices[0].text


def refusal(server: Server) -> None:
    try:
        ask(server, "hosted_vllm", messages=[{"role": "user", "content": "so " * 3000}])
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("a prompt beyond the context was answered")


def structured_output(server: Server) -> None:
    schema = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}}
    answer = ask(server, "hosted_vllm", response_format=wanted, max_tokens=40)
    assert answer.choices[0].message.content.startswith('{"wet"')


run(
    {
        "chat": chat,
        "stream": stream,
        "completion": completion,
        "prompt beyond the context": refusal,
        "structured output": structured_output,
    }
)
