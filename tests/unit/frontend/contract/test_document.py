"""The OpenAPI document: every route is in it, with its request's type and the bounds that the code checks."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from atomesh.errors import InvalidRequestError
from atomesh.frontend.contract.bounds import FACTS
from atomesh.frontend.contract.document import make_document
from atomesh.frontend.contract.operation import Operation
from atomesh.frontend.contract.told_route import ToldRoute
from atomesh.frontend.openai.chat_request import ChatRequest, parse_chat_sampling
from atomesh.frontend.openai.completion_request import CompletionRequest, parse_completion_sampling
from atomesh.protocol.sampling_bounds import BOUNDS
from atomesh.testing.gateway_document import gateway_document

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


document = cache(gateway_document)


def schema(name: str) -> dict[str, Any]:
    return {**document()["components"]["schemas"][name], "components": document()["components"]}


def is_valid(name: str, value: object) -> bool:
    return bool(Draft202012Validator(schema(name)).is_valid(value))


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_is_told_in_words() -> None:
    assert [(method, path) for method, path, told in operations() if not told["summary"]] == []


def test_the_routes_of_the_contract_are_there() -> None:
    told = {f"{method} {path}" for method, path, _ in operations()}
    assert told >= {
        "GET /v1/models",
        "GET /v1/models/{id}",
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/embeddings",
        "POST /tokenize",
        "POST /detokenize",
        "GET /tokenizer_info",
        *(f"GET /{name}" for name in ("health", "live", "ready", "ping", "version", "metrics", "load")),
        "GET /workers",
        "POST /workers",
        "DELETE /workers/{id}",
        "POST /workers/{id}/role",
        "GET /explain/{id}",
        "GET /debug/kv",
        "POST /reset_prefix_cache",
        "POST /start_profile",
        "POST /stop_profile",
        "POST /debug/fault",
        "GET /openapi.json",
    }


def test_only_the_operators_routes_ask_for_the_admin_token() -> None:
    guarded = {path for _, path, told in operations() if told["security"] == [{"adminToken": []}]}
    assert "/workers" in guarded
    assert "/debug/fault" in guarded
    assert guarded.isdisjoint({"/v1/models", "/v1/chat/completions", "/health", "/registration"})


def test_every_reference_is_kept() -> None:
    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [one for inner in value.values() for one in references(inner)]
        return [one for inner in value for one in references(inner)] if isinstance(value, list) else []

    named = {reference.rpartition("/")[2] for reference in references(document())}
    assert named <= document()["components"]["schemas"].keys()
    assert "ChatRequest" in named


def test_every_fact_is_of_a_field_that_there_is() -> None:
    for kind, facts in FACTS.items():
        assert facts.keys() <= {field.name for field in msgspec.structs.fields(kind)}, kind


@pytest.mark.parametrize("name", sorted(BOUNDS.keys() - {"logprobs"}))
def test_the_document_and_the_code_have_the_same_bounds(name: str) -> None:
    bound = BOUNDS[name]
    beside = 1e-6 if isinstance(bound.low, float) else 1
    values = [bound.low - beside, bound.low, bound.low + beside, bound.high]
    values += [bound.high + beside] if bound.high < 1e300 else []
    for value in values:
        # these need another field beside them
        more = {"n": {"temperature": 1.0}, "min_tokens": {"max_tokens": 2**31 - 1}}.get(name, {})
        body = {**HELLO, name: value, **more}
        assert is_valid("ChatRequest", body) == is_taken(body), (name, value)


def is_taken(body: Mapping[str, Any]) -> bool:
    try:
        parse_chat_sampling(msgspec.json.decode(msgspec.json.encode(body), type=ChatRequest))
    except InvalidRequestError:
        return False
    return True


@pytest.mark.parametrize("value", [-1, 0, 5, 6])
def test_logprobs_of_a_completion_are_fewer(value: int) -> None:
    body = {"prompt": "a", "logprobs": value}
    try:
        parse_completion_sampling(msgspec.convert(body, CompletionRequest))
        is_good = True
    except InvalidRequestError:
        is_good = False
    assert is_valid("CompletionRequest", body) == is_good == (0 <= value <= 5)


@pytest.mark.parametrize(
    ("name", "body", "is_good"),
    [
        ("ChatRequest", HELLO, True),
        ("ChatRequest", {}, False),
        ("ChatRequest", {"messages": []}, False),
        ("ChatRequest", {"messages": [{"role": "wizard"}]}, False),
        ("ChatRequest", {**HELLO, "stop": ["a"] * 65}, False),
        ("ChatRequest", {**HELLO, "stop": ["a"] * 64}, True),
        ("ChatRequest", {**HELLO, "stop": ""}, False),
        ("ChatRequest", {**HELLO, "logit_bias": {"7": 1}}, True),
        ("ChatRequest", {**HELLO, "logit_bias": {"seven": 1}}, False),
        ("ChatRequest", {**HELLO, "unheard_of": 1}, True),
        ("ChatRequest", {**HELLO, "temperature": None}, True),
        ("CompletionRequest", {"prompt": "a"}, True),
        ("CompletionRequest", {"prompt": ""}, False),
        ("CompletionRequest", {}, False),
        ("DetokenizeRequest", {}, False),
        ("MessagesRequest", {**HELLO, "max_tokens": 1}, True),
        ("MessagesRequest", HELLO, False),
        ("MessagesRequest", {**HELLO, "max_tokens": 1, "temperature": 1.5}, False),
    ],
    ids=repr,
)
def test_what_the_document_takes(name: str, body: object, is_good: bool) -> None:
    assert is_valid(name, body) is is_good


def test_a_route_follows_without_being_told() -> None:
    class Asked(msgspec.Struct):
        question: str

    class Endpoint:
        kind = Asked

        async def __call__(self, *_: object) -> None: ...

    route = Route("/v2/ask/{id:path}", Endpoint(), methods=["POST"])
    told = ToldRoute(
        Route("/more", Endpoint(), methods=["POST"]), {("POST", "/more"): Operation("More", "text")}
    )
    made = make_document([route, told])
    body = {"$ref": "#/components/schemas/Asked"}
    [asked, more] = [made["paths"][path]["post"] for path in ("/v2/ask/{id}", "/more")]
    assert asked["requestBody"]["content"]["application/json"]["schema"] == body
    assert [one["name"] for one in asked["parameters"]] == ["id"]
    assert (more["summary"], more["tags"]) == ("More", ["text"])
    assert made["components"]["schemas"]["Asked"]["required"] == ["question"]
