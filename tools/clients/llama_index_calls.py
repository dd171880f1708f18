"""LlamaIndex's OpenAILike against a server: URL MODEL."""

# ruff: noqa: S101  a check is an assertion

import asyncio
from typing import Any

from checks import Server, run
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

TALK = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Say hello.")]


class City(BaseModel):
    name: str
    is_capital: bool


def make_llm(server: Server, **fields: Any) -> OpenAILike:
    settings = {"is_chat_model": True, "max_tokens": 12, "temperature": 0, "context_window": 2048, **fields}
    return OpenAILike(model=server.model, api_base=server.api, api_key="none", max_retries=0, **settings)


def complete(server: Server) -> None:
    llm = make_llm(server, is_chat_model=False)
    text = llm.complete("The capital of France is").text
    assert text.strip()
    assert "".join(part.delta or "" for part in llm.stream_complete("The capital of France is")) == text


def chat(server: Server) -> None:
    llm = make_llm(server)
    text = llm.chat(TALK).message.content
    assert text
    assert "".join(part.delta or "" for part in llm.stream_chat(TALK)) == text


def chat_asynchronously(server: Server) -> None:
    async def scenario() -> None:
        llm = make_llm(server)
        text = (await llm.achat(TALK)).message.content
        assert text
        assert "".join([part.delta or "" async for part in await llm.astream_chat(TALK)]) == text

    asyncio.run(scenario())


def structured_output(server: Server) -> None:
    llm = make_llm(server, is_function_calling_model=True, should_use_structured_outputs=True, max_tokens=60)
    city = llm.as_structured_llm(City).complete("Paris is the capital of France.").raw
    assert isinstance(city, City)


def tool_call(server: Server) -> None:
    def look_up(is_raining: bool) -> bool:
        """Tell whether it is raining."""
        return is_raining

    llm = make_llm(server, is_function_calling_model=True, max_tokens=100)
    answer = llm.chat_with_tools(
        [FunctionTool.from_defaults(look_up)], user_msg="Is it raining?", tool_required=True
    )
    call, *_ = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "look_up"
    assert isinstance(call.tool_kwargs["is_raining"], bool)


run(
    {
        "complete": complete,
        "chat": chat,
        "chat, asynchronously": chat_asynchronously,
        "structured output": structured_output,
        "tool call": tool_call,
    }
)
