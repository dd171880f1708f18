"""GET /tokenizer_info: enough for a client that makes its prompts itself."""

import json
from dataclasses import replace

from starlette.testclient import TestClient

from atomesh.frontend.app import create_app
from atomesh.frontend.served_model import ServedModel
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.scripted_service import ScriptedService

DESCRIPTION = ModelDescription(
    name="one",
    path="",
    architecture="scripted",
    dtype="float32",
    vocab_size=ByteTokenizer.vocab_size,
    max_model_len=512,
    eos_token_ids=(END,),
    block_size=16,
    num_blocks=64,
)
ONE = ServedModel("one", ByteTokenizer(), PlainChatTemplate(), ScriptedService(DESCRIPTION), 1, ("first",))
RELAYED = replace(ONE, name="relayed", aliases=(), is_relayed=True)
OTHER = replace(ONE, name="other", aliases=(), chat_template=None)


def ask(query: str = "") -> tuple[int, dict[str, object]]:
    client = TestClient(create_app(lambda: [ONE, OTHER, RELAYED]))
    response = client.get(f"/tokenizer_info{query}")
    return response.status_code, json.loads(response.content)


def test_the_first_models_tokens_and_template() -> None:
    assert ask() == (
        200,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "vocab_size": 259,
            "model_max_length": 512,
            "bos_token": "<s>",
            "eos_token": "<|end|>",
            "unk_token": None,
            "pad_token": None,
            "additional_special_tokens": ["<|start|>"],
            "chat_template": "no template",
        },
    )


def test_another_model_is_named() -> None:
    status, told = ask("?model=other")
    assert (status, told["chat_template"]) == (200, None)


def test_an_unknown_one_is_not_found() -> None:
    status, told = ask("?model=no/such")
    error = told["error"]
    assert isinstance(error, dict)
    assert (status, error["type"]) == (404, "model_not_found")


def test_another_servers_tokens_are_not_told() -> None:
    status, told = ask("?model=relayed")
    error = told["error"]
    assert isinstance(error, dict)
    assert (status, error["param"]) == (400, "model")
    assert "the tokens of relayed are its own server's" in error["message"]
