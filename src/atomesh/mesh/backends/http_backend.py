"""An engine that is not ours, as the mesh sees it: reached over HTTP, watched by asking, left to abort."""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from atomesh.errors import AtomeshError, EngineError
from atomesh.mesh.backends.backend import QuietBackend
from atomesh.mesh.backends.context import BackendContext, LocalModel
from atomesh.mesh.backends.foreign_json import UnreadableError, decode_json
from atomesh.mesh.backends.foreign_news import ForeignNews
from atomesh.mesh.backends.hand_offs import HandOff
from atomesh.mesh.backends.http_client import HttpClient
from atomesh.mesh.backends.leg_tasks import LegTasks
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.streamed_answers import DeltaSink
from atomesh.mesh.backends.text_worker import TextWorker
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.backends.zmq_events import require_zmq
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, PrefillLeg, TokenDelta
from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.worker import LoadReport, RoleWeights, WorkerDescription, find_fault
from atomesh.sparse_log import SparseLog

_log = logging.getLogger(__name__)

LOST_S = 2.5
WATCH_S = 0.4
HELLO_S = 10.0
DEFAULT_MODEL_LEN = 2048  # of an engine that does not say
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 2.0
FAULT_LOG_S = 10.0


@dataclass(frozen=True, slots=True)
class Introduction:
    """`incarnation` is the same as long as the engine lives, where it can be told; else it is made up."""

    worker: WorkerDescription
    load: LoadReport


class ListedModel(msgspec.Struct, frozen=True):
    """Of GET /v1/models."""

    id: str
    root: str | None = None
    max_model_len: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[ListedModel]


_models = msgspec.json.Decoder(_ModelList)


class NoTokensError(Exception):
    """The model's files are not here: its text must be left to the engine."""


class HttpBackend(QuietBackend, ABC):
    """What vLLM and SGLang have in common. Implements WorkerBackend."""

    def __init__(self, spec: BackendSpec, context: BackendContext) -> None:
        """Raises ConfigurationError when its KV events are to be heard and pyzmq is not installed."""
        if spec.events is not None:
            require_zmq()
        self.address = spec.url
        self.spec = spec
        self.context = context
        self.client = HttpClient(spec.url, spec.api_key)
        self._legs = LegTasks(spec.url)
        self._is_connected = False
        self._news: ForeignNews | None = None
        self._load = LoadReport()
        self._is_missed = False
        self._sparse_log = SparseLog(context.clock, FAULT_LOG_S)
        context.registry.expect(spec.url)

    @abstractmethod
    async def introduce(self) -> Introduction:
        """Who answers there. Raises NoTokensError when it can only be talked to in text."""

    @abstractmethod
    async def look(self) -> LoadReport:
        """How busy it is. Raises WorkerLostError when another than the introduced one answers."""

    @abstractmethod
    async def compute(
        self, request: GenerationRequest, leg: Leg | None, stream: DeltaSink, hand_off: HandOff | None
    ) -> None:
        """Push the leg's deltas, to its end. Raises AtomeshError."""

    async def run(self) -> None:
        try:
            await self._keep_in_touch()
        except NoTokensError:
            await TextWorker(self.spec, self.context, self.client).run()
        except Exception:
            self._lost()
            raise
        finally:
            await self.client.close()

    def submit(self, request: GenerationRequest, leg: Leg | None) -> RequestStream:
        choices = len(leg.outputs) if isinstance(leg, DecodeLeg) else request.n
        if not self._is_connected:
            stream = RequestStream(choices, lambda _: None)
            stream.fail(WorkerLostError())
            return stream
        if _ticket(leg) is None:
            return self._legs.start(
                choices, lambda stream: self.compute(request, leg, self._paced(request, leg, stream), None)
            )
        return self._submit_half(request, leg, 1 if isinstance(leg, PrefillLeg) else choices)

    def set_role(self, weights: RoleWeights) -> None:
        self.context.registry.set_weights(self.address, weights)

    def fail_all(self, error: AtomeshError) -> None:
        self._legs.fail_all(error)

    def heard(self) -> None:
        """It has said something: it lives."""
        self.context.registry.heard(self.address, self._load, self.context.clock.now())

    async def list_models(self) -> list[ListedModel]:
        """Never empty. Raises EngineError for what is no such list."""
        try:
            models = decode_json(await self.client.get("/v1/models", LOST_S), _models).data
        except UnreadableError:
            raise EngineError("GET /v1/models gives no list of models; is its URL right?") from None
        if not models:
            raise EngineError("GET /v1/models gives no model")
        return models

    async def find_files(self, *names: str) -> LocalModel:
        """The operator's own word goes before `names`, the engine's. Raises NoTokensError."""
        wanted = (self.spec.model,) if self.spec.model else names
        for name in wanted:
            found = await asyncio.to_thread(self.context.find_model, name) if name else None
            if found is not None:
                return found
        _log.warning(
            "no files of the model %s of %s here: text is left to the engine; name them with model=…",
            " or ".join(map(repr, wanted)),
            self.address,
        )
        raise NoTokensError

    def _submit_half(self, request: GenerationRequest, leg: Leg | None, choices: int) -> RequestStream:
        hand_offs = self.context.hand_offs
        hand_off = hand_offs.join(request.request_id)

        async def work(stream: RequestStream) -> None:
            sink = self._paced(request, leg, stream)
            try:
                await _unless_broken(hand_off, lambda: self.compute(request, leg, sink, hand_off))
            except (AtomeshError, asyncio.CancelledError):
                hand_off.break_off()
                raise
            finally:
                hand_offs.leave(request.request_id)

        return self._legs.start(choices, work, is_first_token_all=isinstance(leg, PrefillLeg))

    def _paced(self, request: GenerationRequest, leg: Leg | None, stream: RequestStream) -> DeltaSink:
        """One that computes the prompt is measured by it."""
        if isinstance(leg, DecodeLeg) or self._news is None:
            return stream
        return self._news.measured(len(request.prompt_token_ids), stream)

    async def _keep_in_touch(self) -> None:
        delay = FIRST_DELAY_S
        while True:
            try:
                await self._live_once()
            except TimeoutError as error:
                _log.debug("nobody answers at %s: %s", self.address, error)
            except WorkerLostError as error:
                self._say_unusable(error.why)
            except AtomeshError as error:
                self._say_unusable(error.message)
            delay = FIRST_DELAY_S if self._is_connected else min(delay * 1.6, LONGEST_DELAY_S)
            self._lost()
            await asyncio.sleep(delay)

    def _say_unusable(self, why: str) -> None:
        """Nothing where nobody answers and no more is known."""
        if why and self._sparse_log.admit() is not None:
            _log.warning("the engine at %s cannot be used: %s", self.address, why)

    async def _live_once(self) -> None:
        told = await asyncio.wait_for(self.introduce(), HELLO_S)
        self._check(told.worker)
        news = self._news = ForeignNews(told.worker, self.spec.events, self.context)
        try:
            await self._watch(told)
        finally:
            self._news = None
            await news.close()

    def _check(self, worker: WorkerDescription) -> None:
        """Raises EngineError for one with sizes or names that cannot be."""
        fault = find_fault(worker)
        if fault is not None:
            self.context.refusals["message"] += 1
            raise EngineError(f"what it says of itself cannot be: {fault}")

    async def _watch(self, told: Introduction) -> None:
        """Until it is lost. Raises AtomeshError, TimeoutError."""
        worker, registry = told.worker, self.context.registry
        self._is_connected, self._load = True, told.load
        registry.connected(self.address, worker, self.context.clock.now())
        self.heard()
        level = logging.WARNING if self._is_missed else logging.INFO
        _log.log(level, "%s at %s is ready", worker.engine, self.address)
        while True:
            await asyncio.sleep(WATCH_S)
            self._load = await asyncio.wait_for(self.look(), LOST_S)
            self.heard()

    def _lost(self) -> None:
        if not self._is_connected:
            return
        self._is_connected, self._is_missed = False, True
        _log.warning("the engine at %s does not answer any more", self.address)
        self.context.registry.lost(self.address)
        self._legs.fail_all(WorkerLostError())


def new_incarnation(url: str, started_at: float | None) -> str:
    """As long as the process lives where it says when it began."""
    return secrets.token_hex(8) if started_at is None else f"{url}@{started_at:.2f}"


def foreign_layout(engine: str, model: str, block_size: int = 1, dtype: str = "") -> KVLayout:
    """As far as they tell; the rest of what two of them need for a hand-off is theirs to know.

    With ours they cannot.
    """
    return KVLayout(
        name=engine,
        model=model,
        weights="",
        dtype=dtype,
        block_size=block_size,
        num_layers=0,
        num_kv_heads=0,
        head_dim=0,
        block_bytes=0,
    )


def facts_alone(request: GenerationRequest, deltas: Sequence[TokenDelta]) -> TokenDelta:
    """What prefill knows of the prompt, without the token that it sampled. Raises EngineError."""
    if not deltas:
        raise EngineError("the prefill engine's answer has no token; try again")
    told = deltas[0]
    return TokenDelta(
        request_id=request.request_id,
        cached_tokens=told.cached_tokens,
        prompt_logprobs=told.prompt_logprobs,
        timings=told.timings,
    )


def _ticket(leg: Leg | None) -> object:
    return None if leg is None else leg.ticket


async def _unless_broken(hand_off: HandOff, work: Callable[[], Awaitable[None]]) -> None:
    """Raises OtherLegFailedError as soon as the other leg has failed."""
    working = asyncio.ensure_future(work())
    breaking = asyncio.ensure_future(hand_off.until_broken())
    try:
        await asyncio.wait((working, breaking), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise await breaking
        await working
    finally:
        for task in (working, breaking):
            task.cancel()
        await asyncio.gather(working, breaking, return_exceptions=True)
