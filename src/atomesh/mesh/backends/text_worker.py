"""A server that takes text, as a worker of the mesh: what it serves, and whether it is there."""

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from atomesh.errors import AtomeshError, EngineError
from atomesh.mesh.backends.context import BackendContext
from atomesh.mesh.backends.foreign_json import UnreadableError, decode_json
from atomesh.mesh.backends.http_client import HttpClient
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.text_servers import TextServer
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.protocol.worker import LoadReport, ModelDescription, WorkerDescription

_log = logging.getLogger(__name__)

ENGINE = "openai"
LOOK_S = 2.0
BEAT_S = 0.4
ANSWER_S = 2.5
MAX_MODELS = 256
MAX_NAME = 256  # characters
BLOCK_WORDS = 32  # of four bytes: about as much text as a block of tokens
KNOWN_BLOCKS = 2**15  # of what was sent there, for those who look for prefixes


class _Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


_models = msgspec.json.Decoder(_Models)


@dataclass(frozen=True, slots=True)
class _Look:
    """What it serves, what is wrong where that is nothing, and whether it did not even answer."""

    texts: tuple[ModelDescription, ...] = ()
    trouble: str = ""
    is_silent: bool = False


class TextWorker:
    """Between two looks it is taken for alive; while one takes long, for silent."""

    def __init__(self, spec: BackendSpec, context: BackendContext, client: HttpClient) -> None:
        """The registry expects it already."""
        self._spec = spec
        self._context = context
        self._server = TextServer(client)
        self._incarnation = ""
        self._texts: tuple[ModelDescription, ...] = ()
        self._has_too_many = False

    async def run(self) -> None:
        """Until cancelled."""
        self._context.texts.join(self._spec.url, self._server)
        trouble = ""
        try:
            while True:
                seen = await self._ask()
                if seen.trouble != trouble:
                    _log.warning("%s", seen.trouble or f"the server at {self._spec.url} is ready")
                    trouble = seen.trouble
                self._note(seen.texts)
                if seen.is_silent:
                    self._server.end(WorkerLostError())
                await self._until_next_look()
        finally:
            self._context.texts.leave(self._spec.url)
            self._server.end(WorkerLostError())
            self._note(())

    async def _until_next_look(self) -> None:
        for _ in range(round(LOOK_S / BEAT_S)):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._server.suspected.wait(), BEAT_S)
                break
            self._beat()
        self._server.suspected.clear()

    async def _ask(self) -> _Look:
        spec = self._spec
        try:
            listed = _parse(await self._server.client.get("/v1/models", ANSWER_S))
        except (WorkerLostError, TimeoutError) as error:
            why = error.why if isinstance(error, WorkerLostError) else ""
            what = f"cannot be used: {why}" if why else "does not answer"
            return _Look(trouble=f"the server at {spec.url} {what}", is_silent=True)
        except AtomeshError as error:
            return _Look(trouble=f"the server at {spec.url} cannot be used: {error.message}")
        found = self._within_bounds([one for one in listed if spec.model in ("", one.id)])
        return _Look(found, "" if found else f"the server at {spec.url} has no model {spec.model!r}")

    def _within_bounds(self, wanted: list[_Model]) -> tuple[ModelDescription, ...]:
        short = {one.id: one for one in wanted if 0 < len(one.id) <= MAX_NAME}
        kept = [_text_model(one) for one in list(short.values())[:MAX_MODELS]]
        if len(kept) < len(wanted) and not self._has_too_many:
            self._has_too_many = True
            _log.warning(
                "of %d models that %s lists %d are offered: at most %d, each once, with a name of up to %d "
                "characters; name one with model=…",
                len(wanted),
                self._spec.url,
                len(kept),
                MAX_MODELS,
                MAX_NAME,
            )
        return tuple(kept)

    def _note(self, texts: tuple[ModelDescription, ...]) -> None:
        registry, was_there = self._context.registry, bool(self._texts)
        is_change, self._texts = texts != self._texts, texts
        if not texts and was_there:
            self._context.knowledge.index.drop(self._incarnation)
            registry.lost(self._spec.url)
        if texts and not was_there:
            self._incarnation = secrets.token_hex(8)
            self._context.knowledge.index.approximate.join(self._incarnation, KNOWN_BLOCKS)
        if texts and is_change:
            registry.connected(self._spec.url, self._describe(), self._context.clock.now())
        self._beat()

    def _beat(self) -> None:
        if self._texts:
            self._context.registry.heard(self._spec.url, LoadReport(), self._context.clock.now())

    def _describe(self) -> WorkerDescription:
        return WorkerDescription(
            worker_id=self._spec.url,
            incarnation=self._incarnation,
            pid=0,
            role="unified",
            model=self._texts[0],
            texts=self._texts,
            max_num_seqs=self._spec.slots,
            engine=ENGINE,
        )


def _parse(document: bytes) -> list[_Model]:
    try:
        return decode_json(document, _models).data
    except UnreadableError:
        raise EngineError("GET /v1/models gives no list of models; is its URL right?") from None


def _text_model(told: _Model) -> ModelDescription:
    return ModelDescription(
        name=told.id,
        path="",
        architecture="",
        dtype="text",
        vocab_size=0,
        max_model_len=max(told.max_model_len or 0, 0),
        eos_token_ids=(),
        block_size=BLOCK_WORDS,
        num_blocks=0,
    )
