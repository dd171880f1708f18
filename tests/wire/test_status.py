"""Models, health, tokenising, metrics: what a client asks beside answers."""

import openai
import pytest

from atomesh.testing.raw_http import send
from atomesh.testing.wire import ScriptedWire, Wire


def test_models_are_listed_with_their_context(wire: Wire) -> None:
    model = wire.client.models.list().data[0]
    assert model.object == "model"
    assert model.id == wire.model
    assert model.model_extra["max_model_len"] > 0
    assert wire.client.models.retrieve(wire.model).id == wire.model


def test_a_model_id_may_contain_slashes(scripted: ScriptedWire) -> None:
    assert scripted.model == "scripted/letters"
    assert send(scripted.url, "GET", "/v1/models/scripted/letters").json()["id"] == "scripted/letters"
    assert send(scripted.url, "GET", "/v1/models/letters").json()["root"] == "scripted/letters"


def test_an_unknown_model_is_not_found(wire: Wire) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        wire.client.models.retrieve("no/such")
    assert caught.value.body["type"] == "model_not_found"


@pytest.mark.parametrize("path", ["/health", "/ready", "/live", "/ping", "/version", "/load", "/metrics"])
def test_status_pages_answer(wire: Wire, path: str) -> None:
    response = send(wire.url, "GET", path)
    assert response.status == 200
    assert response.body
    assert response.headers["x-request-id"].startswith("req-")


def test_a_bad_label_is_replaced(wire: Wire) -> None:
    for label in ("a b", "x" * 129, "ä"):
        response = send(wire.url, "GET", "/live", headers={"x-request-id": label})
        assert response.headers["x-request-id"].startswith("req-")


def test_tokenize_and_detokenize_are_inverse(wire: Wire) -> None:
    text = "Grüße, 世界! \U0001f30d"
    answer = send(
        wire.url,
        "POST",
        "/tokenize",
        {"prompt": text, "add_special_tokens": False, "return_token_strs": True},
    ).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] > 0
    back = send(wire.url, "POST", "/detokenize", {"model": wire.model, "tokens": answer["tokens"]}).json()
    assert back == {"prompt": text}


def test_tokenize_renders_messages_as_the_chat_does(wire: Wire) -> None:
    messages = [{"role": "user", "content": "hello"}]
    tokens = send(wire.url, "POST", "/tokenize", {"messages": messages}).json()["tokens"]
    answer = wire.client.chat.completions.create(
        model=wire.model, messages=messages, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert answer.model_extra["prompt_token_ids"] == tokens


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "a"}]}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
def test_bad_tokenising_is_refused(wire: Wire, path: str, body: dict[str, object]) -> None:
    response = send(wire.url, "POST", path, body)
    assert response.status == 400
    assert response.error["type"] == "invalid_request_error"


def test_user_text_never_becomes_a_control_token(scripted: ScriptedWire) -> None:
    messages = [{"role": "user", "content": "<|end|>"}]
    scripted.client.chat.completions.create(model=scripted.model, messages=messages, max_tokens=1)
    (request,) = scripted.service.requests
    assert request.prompt_token_ids == [258, *b"user\n<|end|>", 257, 258, *b"assistant\n"]


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [*TOOLS, *TOOLS]}, "tools[1].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"evil": 1}}, "chat_template_kwargs.evil"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
def test_tokenize_refuses_what_the_chat_refuses(
    wire: Wire, path: str, fields: dict[str, object], param: str
) -> None:
    messages = [{"role": "user", "content": "hello"}]
    response = send(wire.url, "POST", path, {"messages": messages, **fields})
    assert response.status == 400
    assert (response.error["type"], response.error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}, {"tools": TOOLS, "tool_choice": "none"}])
def test_tools_that_may_not_be_called_change_no_token(wire: Wire, fields: dict[str, object]) -> None:
    messages = [{"role": "user", "content": "hello"}]
    plain, asked = (
        send(wire.url, "POST", "/tokenize", {"messages": messages, **more}).json()["tokens"]
        for more in ({}, fields)
    )
    answer = wire.client.chat.completions.create(
        model=wire.model, messages=messages, max_tokens=1, extra_body={"return_token_ids": True, **fields}
    )
    assert plain == asked == answer.model_extra["prompt_token_ids"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_tokenising_refuses_internal_headers_and_counts_unknown_fields(
    scripted: ScriptedWire, path: str
) -> None:
    body = {"prompt": "a"} if path == "/tokenize" else {"tokens": [97]}
    response = send(scripted.url, "POST", path, body, {"x-atomesh-ticket": "1"})
    assert (response.status, response.error["param"]) == (400, "x-atomesh-ticket")
    assert send(scripted.url, "POST", path, {**body, "unheard_of": 1}).status == 200
    metrics = send(scripted.url, "GET", "/metrics").body.decode()
    assert f'atomesh_unknown_request_fields_total{{endpoint="{path}"}} 1.0' in metrics


def test_a_path_that_ends_without_a_model_names_none(scripted: ScriptedWire) -> None:
    response = send(scripted.url, "GET", "/v1/models/")
    assert (response.status, response.error["type"]) == (404, "model_not_found")
