"""The models that the gateway offers: each worker's hello names one, whose text side is then loaded once."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomesh.errors import AtomeshError
from atomesh.frontend.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.token_service import TokenService
from atomesh.frontend.tool_calls.registry import DEFAULT_DIALECT
from atomesh.mesh.gateway.text_models import RelayedTokenizer, aliases_of
from atomesh.protocol.worker import ModelDescription, WorkerDescription

if TYPE_CHECKING:
    from atomesh.frontend.reasoning.dialect import ReasoningDialect
    from atomesh.frontend.templates.chat_template import ChatTemplate
    from atomesh.frontend.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

MAX_FAILURES = 1024


@dataclass(frozen=True, slots=True)
class TextSide:
    """What the frontend needs of a model's files."""

    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    reasoning_dialect: "ReasoningDialect | None" = None
    tool_dialect: str = DEFAULT_DIALECT


class ServedModels:
    """Callable: the models whose text side is loaded, in the order of their first hello.

    `failures` says of a model that a worker has and nobody is offered why it could not be loaded; another
    hello is another try.
    """

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
        self._failures: dict[str, str] = {}
        self._first: str | None = None

    def __call__(self) -> Sequence[ServedModel]:
        return tuple(self._models.values())

    @property
    def failures(self) -> Mapping[str, str]:
        return self._failures

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

    def withdraw(self, name: str) -> None:
        """A model of a text server's is not offered any more."""
        if name in self._models and self._models[name].is_relayed:
            del self._models[name]

    def _aliases_of(self, name: str) -> tuple[str, ...]:
        self._first = self._first or name
        return aliases_of(name, self._aliases, is_first=name == self._first)

    async def run(self) -> None:
        """Load text sides as models are heard of, until cancelled."""
        while True:
            model = await self._heard.get()
            if model.name in self._models:
                continue
            try:
                text = await asyncio.to_thread(self._load_text, model)
            except Exception as error:  # noqa: BLE001  one worker's files must not end the others' service
                self._note_failure(model, error)
            else:
                self._offer(model.name, text)

    def _offer(self, name: str, text: TextSide) -> None:
        self._failures.pop(name, None)
        self._models[name] = ServedModel(
            name=name,
            tokenizer=text.tokenizer,
            chat_template=text.chat_template,
            service=self._make_service(name),
            created=int(time.time()),
            aliases=self._aliases_of(name),
            sampling_defaults=text.sampling_defaults,
            reasoning_dialect=text.reasoning_dialect,
            tool_dialect=text.tool_dialect,
        )

    def _note_failure(self, model: ModelDescription, error: Exception) -> None:
        is_expected = isinstance(error, AtomeshError)
        why = error.message if isinstance(error, AtomeshError) else f"{type(error).__name__}: {error}"
        if self._failures.get(model.name) != why:
            _log.error(
                "the model %.200s is not offered, its text side cannot be loaded: %s",
                model.name,
                why,
                exc_info=None if is_expected else error,
            )
        if len(self._failures) >= MAX_FAILURES:
            self._failures.pop(next(iter(self._failures)))
        self._failures[model.name] = why

    def close(self) -> None:
        """End the processes in which chat templates run."""
        for model in self._models.values():
            if model.chat_template is not None:
                model.chat_template.close()
