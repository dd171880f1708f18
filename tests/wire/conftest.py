"""Servers under test: what asks for `wire` holds for every server, what asks for `scripted` for the double.

The real servers are `atomesh serve` with the default model, as one unified worker and as one prefill and one
decode worker; ATOMESH_WIRE_URL=http://host:port names another in their place. make soak runs all suites on
both shapes, make test those of chats and of streams' bytes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import openai
import pytest

from atomesh.frontend.app import create_app
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.served_model import ServedModel
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.app_server import serve_app
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.scripted_service import Script, ScriptedService
from atomesh.testing.wire import ScriptedWire, Wire

REAL_URL = os.environ.get("ATOMESH_WIRE_URL")
DESCRIPTION = ModelDescription(
    name="scripted/letters",
    path="",
    architecture="scripted",
    dtype="float32",
    vocab_size=ByteTokenizer.vocab_size,
    max_model_len=512,
    eos_token_ids=(END,),
    block_size=16,
    num_blocks=64,
)


def make_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60.0)


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[ScriptedWire]:
    options = FrontendOptions(hold_s=0.2, keep_alive_s=0.1, max_body_bytes=2**20, body_timeout_s=1.0)
    service = ScriptedService(DESCRIPTION)
    model = ServedModel(
        DESCRIPTION.name, ByteTokenizer(), PlainChatTemplate(), service, 1_700_000_000, ("letters",)
    )
    models = [model]
    with serve_app(create_app(lambda: models, options)) as server, make_client(server.url) as client:
        yield ScriptedWire(server.url, model.name, client, server, service, models)


@pytest.fixture
def scripted(scripted_server: ScriptedWire) -> Iterator[ScriptedWire]:
    """The scripted server as new; a test may leave nothing running on it."""
    service, models = scripted_server.service, list(scripted_server.models)
    service.script = lambda _request: Script()
    service.requests.clear()
    service.aborted.clear()
    yield scripted_server
    service.unavailable = None
    scripted_server.models[:] = models
    assert service.running == set()


SERVERS = {"scripted": "scripted", "real-unified": "default_server", "real-pair": "default_pair"}


SAMPLED_ON_PAIR = ("test_chat.py", "test_stream_bytes.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "real-pair" in item.name and item.path.name not in SAMPLED_ON_PAIR:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(params=["scripted", "real"] if REAL_URL else SERVERS)
def base_url(request: pytest.FixtureRequest) -> str:
    if request.param == "real":
        assert REAL_URL is not None
        return REAL_URL.rstrip("/")
    url: str = request.getfixturevalue(SERVERS[request.param]).url
    return url


@pytest.fixture(scope="session")
def clients() -> Iterator[Callable[[str], openai.OpenAI]]:
    """One client a server; making one is dear."""
    with ExitStack() as stack:
        yield cache(lambda url: stack.enter_context(make_client(url)))


@pytest.fixture
def wire(base_url: str, clients: Callable[[str], openai.OpenAI]) -> Wire:
    client = clients(base_url)
    return Wire(base_url, client.models.list().data[0].id, client)
