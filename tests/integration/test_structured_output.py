"""The default model answers in the shape that was asked, on one worker and on two."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from atomesh.testing.letters_server import make_client
from atomesh.testing.served_process import ServedProcess

CUSTOMER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "vip"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
AS_CUSTOMER = {"type": "json_schema", "json_schema": {"name": "customer", "strict": True, "schema": CUSTOMER}}
ASK: Any = [{"role": "user", "content": "Describe a customer as JSON."}]


def whole(server: ServedProcess, **fields: Any) -> list[tuple[str, str]]:
    with make_client(server.url) as client:
        answer = client.chat.completions.create(model="", messages=ASK, max_tokens=120, **fields)
    return [(choice.message.content or "", choice.finish_reason) for choice in answer.choices]


def streamed(server: ServedProcess, **fields: Any) -> list[tuple[str, str]]:
    told: dict[int, list[str]] = {}
    with make_client(server.url) as client:
        chunks = client.chat.completions.create(model="", messages=ASK, max_tokens=120, stream=True, **fields)
        for chunk in chunks:
            for choice in chunk.choices:
                text, reason = told.get(choice.index, ["", ""])
                told[choice.index] = [text + (choice.delta.content or ""), choice.finish_reason or reason]
    return [(text, reason) for _, (text, reason) in sorted(told.items())]


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 0.8, "seed": 11, "n": 2}])
def test_a_schema_is_obeyed_alike_on_one_worker_and_on_two(
    default_server: ServedProcess, default_pair: ServedProcess, fields: dict[str, Any]
) -> None:
    answers = [
        ask(server, response_format=AS_CUSTOMER, **fields)
        for server in (default_server, default_pair)
        for ask in (whole, streamed)
    ]
    assert answers == [answers[0]] * 4
    for text, reason in answers[0]:
        assert reason == "stop"
        jsonschema.validate(json.loads(text), CUSTOMER)


def test_hostile_grammars_are_refused_while_others_are_answered(default_pair: ServedProcess) -> None:
    hanging = {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(10, 30)]}
    body = {"messages": ASK, "max_tokens": 3, "structured_outputs": {"json": hanging}}
    with ThreadPoolExecutor(1) as threads:
        refused = threads.submit(default_pair.request, "POST", "/v1/chat/completions", body)
        assert whole(default_pair, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})[0][0] in (
            "yes",
            "no",
        )
    assert refused.result().status == 400
    assert refused.result().body["error"]["param"] == "structured_outputs"
    assert "simplify it" in refused.result().body["error"]["message"]
