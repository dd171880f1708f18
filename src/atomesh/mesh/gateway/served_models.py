"""The models that the gateway offers: each worker's hello names one, whose text side is then loaded once."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomesh.frontend.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.token_service import TokenService
from atomesh.mesh.gateway.text_models import RelayedTokenizer, aliases_of
from atomesh.protocol.worker import ModelDescription, WorkerDescription

if TYPE_CHECKING:
    from atomesh.frontend.templates.chat_template import ChatTemplate
    from atomesh.frontend.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextSide:
    """What the frontend needs of a model's files."""

    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"
    sampling_defaults: SamplingDefaults = NO_DEFAULTS


class ServedModels:
    """Callable: the models whose text side is loaded, in the order of their first hello."""

    def __init__(
        self,
        load_text: Callable[[ModelDescription], TextSide],
        make_service: Callable[[str], TokenService],
        aliases: Sequence[str],
    ) -> None:
        """`load_text` may block and runs in a thread.

        `aliases` are further names: NAME of the first model, NAME=MODEL of that one.
        """
        self._load_text = load_text
        self._make_service = make_service
        self._aliases = tuple(aliases)
        self._heard: asyncio.Queue[ModelDescription] = asyncio.Queue()
        self._models: dict[str, ServedModel] = {}

    def __call__(self) -> Sequence[ServedModel]:
        return tuple(self._models.values())

    def hear(self, worker: WorkerDescription) -> None:
        """A worker has said hello."""
        if worker.model.name not in self._models:
            self._heard.put_nowait(worker.model)

    def relay(self, name: str, make_service: Callable[[str], TokenService]) -> None:
        """A model of a text server: nothing is to be loaded for it. One that is there already stays."""
        if name in self._models:
            return
        self._models[name] = ServedModel(
            name=name,
            tokenizer=RelayedTokenizer(),
            chat_template=None,
            service=make_service(name),
            created=int(time.time()),
            aliases=self._aliases_of(name),
            is_relayed=True,
        )

    def _aliases_of(self, name: str) -> tuple[str, ...]:
        return aliases_of(name, self._aliases, is_first=not self._models)

    async def run(self) -> None:
        """Load text sides as models are heard of, until cancelled. Raises ModelFileError."""
        while True:
            model = await self._heard.get()
            if model.name in self._models:
                continue
            text = await asyncio.to_thread(self._load_text, model)
            self._models[model.name] = ServedModel(
                name=model.name,
                tokenizer=text.tokenizer,
                chat_template=text.chat_template,
                service=self._make_service(model.name),
                created=int(time.time()),
                aliases=self._aliases_of(model.name),
                sampling_defaults=text.sampling_defaults,
            )

    def close(self) -> None:
        """End the processes in which chat templates run."""
        for model in self._models.values():
            if model.chat_template is not None:
                model.chat_template.close()
