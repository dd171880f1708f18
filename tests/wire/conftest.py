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

from atomesh.frontend.options import FrontendOptions
from atomesh.testing.letters_server import letters_server, make_client
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire, Wire

REAL_URL = os.environ.get("ATOMESH_WIRE_URL")


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[ScriptedWire]:
    options = FrontendOptions(hold_s=0.2, keep_alive_s=0.1, max_body_bytes=2**20, body_timeout_s=1.0)
    with letters_server(options) as server:
        yield server


@pytest.fixture
def scripted(scripted_server: ScriptedWire) -> Iterator[ScriptedWire]:
    """The scripted server as new; a test may leave nothing running on it."""
    service, models = scripted_server.service, list(scripted_server.models)
    service.script = lambda _request: Script()
    service.requests.clear()
    service.aborted.clear()
    yield scripted_server
    service.unavailable, service.goes_ahead = None, False
    scripted_server.models[:] = models
    assert service.running == set()


@pytest.fixture(params=[False, True], ids=["in-turn", "ahead"])
def both_ways(request: pytest.FixtureRequest, scripted: ScriptedWire) -> None:
    """The scripted server's tokens come to its streams one by one, then as a mesh brings them."""
    scripted.service.goes_ahead = request.param


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
