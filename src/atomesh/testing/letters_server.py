"""The API of a scripted model behind real HTTP, with an openai client for it: what clients see, exactly."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import openai

from atomesh.frontend.app import create_app
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.served_model import ServedModel
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.app_server import serve_app
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.scripted_service import ScriptedService
from atomesh.testing.wire import ScriptedWire

if TYPE_CHECKING:
    from atomesh.frontend.templates.chat_template import ChatTemplate
    from atomesh.frontend.text.tokenizer import Tokenizer

CREATED = 1_700_000_000
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
    """One that never tries again."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60.0)


@contextmanager
def letters_server(options: FrontendOptions) -> Iterator[ScriptedWire]:
    """`scripted/letters`, also known as `letters`: 512 positions, every token a byte."""
    service = ScriptedService(DESCRIPTION)
    model = ServedModel(
        DESCRIPTION.name,
        cast("Tokenizer", ByteTokenizer()),
        cast("ChatTemplate", PlainChatTemplate()),
        service,
        CREATED,
        ("letters",),
    )
    models = [model]
    with serve_app(create_app(lambda: models, options)) as server, make_client(server.url) as client:
        yield ScriptedWire(server.url, model.name, client, server, service, models)
