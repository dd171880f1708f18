"""Keeps the list of models that a text server serves."""

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from atomesh.errors import AtomeshError, EngineError
from atomesh.mesh.backends.context import BackendContext
from atomesh.mesh.backends.http_client import HttpClient
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.text_servers import TextModel, TextServer
from atomesh.mesh.backends.worker_lost import WorkerLostError

_log = logging.getLogger(__name__)

LOOK_S = 2.0
ANSWER_S = 2.5
MAX_MODELS = 1024


class _Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


async def relay_texts(spec: BackendSpec, context: BackendContext, client: HttpClient) -> None:
    """Until cancelled; a server that does not answer serves nothing meanwhile."""
    server = TextServer(spec.url, client)
    context.texts.join(server)
    words = ""
    try:
        while True:
            found, now_words = await _ask(spec, client)
            if now_words != words:
                _log.warning("%s", now_words or f"the server at {spec.url} is ready")
                words = now_words
            context.texts.serves(server, found)
            await asyncio.sleep(LOOK_S)
    finally:
        context.texts.leave(server)


async def _ask(spec: BackendSpec, client: HttpClient) -> tuple[Iterable[TextModel], str]:
    """Its models, and what is wrong where there are none."""
    try:
        models = _parse(await client.get("/v1/models", ANSWER_S))
    except (WorkerLostError, TimeoutError):
        return (), f"the server at {spec.url} does not answer"
    except AtomeshError as error:
        return (), f"the server at {spec.url} cannot be used: {error.message}"
    found = [one for one in models if spec.model in ("", one.id)]
    return found, "" if found else f"the server at {spec.url} has no model {spec.model!r}"


def _parse(document: bytes) -> list[TextModel]:
    try:
        models = msgspec.json.decode(document, type=_Models).data
    except msgspec.DecodeError:
        raise EngineError("GET /v1/models gives no list of models; is its URL right?") from None
    return [TextModel(one.id, one.id, one.max_model_len or 0) for one in models[:MAX_MODELS]]
