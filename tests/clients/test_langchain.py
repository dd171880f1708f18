"""LangChain's ChatOpenAI on both shapes: it works for what its users do, without a setting for us."""

import asyncio

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

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
