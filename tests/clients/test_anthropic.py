"""POST /v1/messages and its like through the anthropic client."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import anthropic
import pytest

from atomesh.testing.wire import ScriptedWire

HELLO = [{"role": "user", "content": "Say hello to the world."}]


@pytest.fixture(scope="module")
def anthropics() -> Iterator[Callable[[str], anthropic.Anthropic]]:
    with ExitStack() as stack:
        yield cache(
            lambda url: stack.enter_context(
                anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60.0)
            )
        )


@pytest.fixture
def claude(scripted: ScriptedWire, anthropics: Callable[[str], anthropic.Anthropic]) -> anthropic.Anthropic:
    return anthropics(scripted.url)


def ask(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    return client.messages.create(**{"model": "letters", "max_tokens": 64, "messages": HELLO} | fields)


def test_a_message(scripted: ScriptedWire, claude: anthropic.Anthropic) -> None:
    scripted.say("Hello.")
    answer = ask(claude, system="Be brief.")
    assert answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", scripted.model)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello."}]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    [request] = scripted.service.requests
    assert answer.usage.input_tokens == len(request.prompt_token_ids)
    assert answer.usage.output_tokens == 7
    assert answer._request_id is not None
