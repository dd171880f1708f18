"""What clients are driven against: a scripted model where the text matters, the default model where it is
enough that it works, as one unified worker and as one prefill and one decode worker."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import openai
import pytest

from atomesh.frontend.options import FrontendOptions
from atomesh.testing.letters_server import letters_server, make_client
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire, Wire

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts, not a package

SHAPES = {"unified": "default_server", "pair": "default_pair"}


@pytest.fixture(scope="session")
def letters() -> Iterator[ScriptedWire]:
    with letters_server(FrontendOptions(hold_s=0.2, keep_alive_s=0.1)) as server:
        yield server


@pytest.fixture
def scripted(letters: ScriptedWire) -> Iterator[ScriptedWire]:
    """The scripted server as new; a test may leave nothing running on it."""
    letters.service.script = lambda _request: Script()
    letters.service.requests.clear()
    yield letters
    letters.service.unavailable = None
    assert letters.service.running == set()


@pytest.fixture(scope="session")
def clients() -> Iterator[Callable[[str], openai.OpenAI]]:
    """One client a server; making one is dear."""
    with ExitStack() as stack:
        yield cache(lambda url: stack.enter_context(make_client(url)))


@pytest.fixture(params=SHAPES)
def stack(request: pytest.FixtureRequest, clients: Callable[[str], openai.OpenAI]) -> Wire:
    """`atomesh serve` with the default model in float32, in each of the two shapes."""
    served = request.getfixturevalue(SHAPES[request.param])
    return Wire(served.url, served.model, clients(served.url))
