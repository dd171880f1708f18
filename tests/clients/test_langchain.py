"""LangChain's ChatOpenAI on both shapes: it works for what its users do, without a setting for us."""

import asyncio
from typing import Literal

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from atomesh.testing.wire import Wire


@pytest.fixture
def llm(stack: Wire) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{stack.url}/v1",
        api_key="none",
        model=stack.model,
        temperature=0,
        max_tokens=10,
        max_retries=0,
    )


def test_invoke(llm: ChatOpenAI) -> None:
    answer = llm.invoke([SystemMessage("Be brief."), HumanMessage("What is bread made of?")])
    assert isinstance(answer, AIMessage)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] == 10
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.response_metadata["model_name"] == llm.model_name


def test_stream_says_what_invoke_says(llm: ChatOpenAI) -> None:
    whole = llm.invoke("What is bread made of?")
    chunks = list(llm.stream("What is bread made of?", stream_usage=True))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.content == whole.content
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_batch_keeps_the_order(llm: ChatOpenAI) -> None:
    questions = ["What is bread made of?", "Where is Paris?", "Say hello."]
    assert [answer.content for answer in llm.batch(questions)] == [
        llm.invoke(question).content for question in questions
    ]


def test_asynchronous_calls(llm: ChatOpenAI) -> None:
    async def scenario() -> tuple[str, str]:
        whole = await llm.ainvoke("Where is Paris?")
        told = [chunk.content async for chunk in llm.astream("Where is Paris?")]
        return str(whole.content), "".join(map(str, told))

    whole, streamed = asyncio.run(scenario())
    assert whole == streamed != ""


def test_a_chain_with_a_prompt_and_a_parser(llm: ChatOpenAI) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "Tell me about {topic}.")])
    text = (prompt | llm | StrOutputParser()).invoke({"topic": "bees"})
    assert isinstance(text, str)
    assert text


def test_a_conversation_with_parts_and_an_earlier_answer(llm: ChatOpenAI) -> None:
    talk = [
        HumanMessage([{"type": "text", "text": "My name is Ada."}]),
        AIMessage("Hello Ada."),
        HumanMessage("What is my name?"),
    ]
    assert llm.invoke(talk).content


def test_logprobs(llm: ChatOpenAI) -> None:
    answer = llm.bind(logprobs=True, top_logprobs=2).invoke("Say hello.")
    assert len(answer.response_metadata["logprobs"]["content"]) == 10


def test_the_completions_class(stack: Wire) -> None:
    llm = OpenAI(
        base_url=f"{stack.url}/v1", api_key="none", model=stack.model, temperature=0, max_tokens=4, best_of=1
    )
    assert llm.generate(["The capital of France is", "Water boils at"]).generations[1][0].text


def test_a_refusal_is_openai_s_exception(llm: ChatOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        llm.invoke("so " * 3000)


ONE_CALL = {"parallel_tool_calls": False}


def longer(llm: ChatOpenAI) -> ChatOpenAI:
    """With room for JSON."""
    return llm.model_copy(update={"max_tokens": 100})


class Weather(BaseModel):
    """The weather at a place."""

    is_raining: bool
    sky: Literal["blue", "grey"]


@tool
def look_outside(window: Literal["north", "south"]) -> str:
    """Look out of a window."""
    return f"{window}: rain"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_with_structured_output(llm: ChatOpenAI, method: Literal["json_schema", "function_calling"]) -> None:
    structured = longer(llm).with_structured_output(Weather, method=method, strict=True)
    assert isinstance(structured.invoke("It rains. What is the weather?"), Weather)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of LangChain's own doing
def test_structured_output_streams(llm: ChatOpenAI) -> None:
    structured = longer(llm).with_structured_output(Weather, method="json_schema")
    *_, last = structured.stream("It rains. What is the weather?")
    assert isinstance(last, Weather)


def test_bind_tools(llm: ChatOpenAI) -> None:
    bound = longer(llm).bind_tools([look_outside], tool_choice="required", strict=True, **ONE_CALL)
    answer = bound.invoke("Is it raining?")
    assert answer.invalid_tool_calls == []
    (call,) = answer.tool_calls
    assert call["name"] == "look_outside"
    talk = [HumanMessage("Is it raining?"), answer, look_outside.invoke(call)]
    assert llm.invoke(talk).content


def test_bound_tools_stream(llm: ChatOpenAI) -> None:
    bound = longer(llm).bind_tools([look_outside], tool_choice="look_outside", strict=True, **ONE_CALL)
    whole = bound.invoke("Is it raining?")
    joined, *chunks = bound.stream("Is it raining?")
    for chunk in chunks:
        joined += chunk
    assert whole.tool_calls[0]["name"] == "look_outside"
    assert [(call["name"], call["args"]) for call in joined.tool_calls] == [
        (call["name"], call["args"]) for call in whole.tool_calls
    ]


def test_the_responses_api(stack: Wire) -> None:
    llm = ChatOpenAI(
        base_url=f"{stack.url}/v1",
        api_key="none",
        model=stack.model,
        temperature=0,
        max_tokens=10,
        use_responses_api=True,
    )
    assert llm.invoke("Say hello.").text
    assert "".join(chunk.text for chunk in llm.stream("Say hello.")) == llm.invoke("Say hello.").text
