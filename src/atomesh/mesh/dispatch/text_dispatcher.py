"""One model's servers of text: each request goes to one, and to another while nothing has come back."""

import logging
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Literal

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, EngineError, NotFoundError
from atomesh.mesh.backends.foreign_errors import NotServedError
from atomesh.mesh.backends.request_stream import UnreadAnswerError
from atomesh.mesh.backends.text_servers import TextServer
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.cluster.registry import Work, WorkerRegistry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.cluster.text_cluster import TextCluster
from atomesh.mesh.dispatch.placer import MeshRules, Placer
from atomesh.mesh.dispatch.shared import Shared
from atomesh.mesh.dispatch.text_ask import TextAsk
from atomesh.mesh.dispatch.text_leg import TextLeg
from atomesh.mesh.dispatch.watch import SentLeg
from atomesh.mesh.placement.placement import PlacementRules, Unified
from atomesh.mesh.placement.policies.rules import PolicyRules
from atomesh.mesh.request_flow.steps import Nowhere, Place
from atomesh.mesh.request_flow.text_attempts import TextAttempts
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.worker import LoadReport, ModelDescription

_log = logging.getLogger(__name__)

DEFAULT_POLICY = "least_work"  # nothing is known of what these servers' work costs
Outcome = Literal["ok", "failed", "aborted"]


class TextDispatcher:
    """`counts` is as Dispatcher's. `outcomes` counts attempts by worker id, `running` those that go on."""

    def __init__(
        self,
        model: str,
        registry: WorkerRegistry,
        servers: Mapping[str, TextServer],
        clock: Clock,
        policies: PolicyRules,
        shared: Shared,
    ) -> None:
        self.model = model
        self.counts: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.running: Counter[str] = Counter()
        self.cluster = TextCluster(model, registry)
        self._registry = registry
        self._servers = servers
        self._clock = clock
        self._shared = shared
        rules = MeshRules(PlacementRules(), policies.with_default(DEFAULT_POLICY), hashes_all=False)
        self._placer = Placer(model, self.cluster, clock, rules, shared)
        self._decider = shared.observation.around(self._placer)

    def close(self) -> None:
        """Refuse new requests from now on; those that run go on."""
        self._placer.close()

    def describe(self) -> ModelDescription:
        return self._placer.describe()

    def load(self) -> LoadReport:
        return LoadReport(running=self.running.total())

    async def relay(self, request: GenerationRequest, ask: TextAsk) -> None:
        """`request` stands for the text: four bytes of it are taken for a token. Raises AtomeshError."""
        attempts = TextAttempts(self.model)
        account = self._shared.explanations.open(request.request_id, self.model, request.n)
        try:
            while not await self._try_once(request, ask, attempts):
                self.counts["retries"] += 1
        except NotServedError:
            raise NotFoundError(
                f"the server of {self.model[:200]!r} has no such route, or not that model any more; "
                "/v1/chat/completions and /v1/completions are what most servers have"
            ) from None
        finally:
            self._decider.ended(account)

    async def _try_once(self, request: GenerationRequest, ask: TextAsk, attempts: TextAttempts) -> bool:
        found = await self._decider.find(Place(request, attempts.excluded, attempts.is_charged))
        if isinstance(found, Nowhere):
            raise attempts.final_error(found.error)
        if not isinstance(found.placement, Unified):
            raise AssertionError("a pair was found for a request in text")
        worker = found.placement.worker
        try:
            await self._answer(worker, request, ask)
        except AtomeshError as error:
            is_lost = isinstance(error, WorkerLostError)
            attempts.note(worker.incarnation, error, is_lost=is_lost, has_begun=ask.has_begun)
            return False
        return True

    async def _answer(self, worker: WorkerSnapshot, request: GenerationRequest, ask: TextAsk) -> None:
        leg = self._begin(worker, request)
        outcome: Outcome = "aborted"
        server = self._servers.get(worker.address)
        try:
            if server is None:
                raise WorkerLostError
            async with server.answering():
                await _understood(worker, ask.send_to(server, leg.began))
            leg.succeeded()
            outcome = "ok"
        except (UnreadAnswerError, NotServedError):  # no fault of the server's
            leg.abort()
            raise
        except AtomeshError as error:
            if server is not None and isinstance(error, WorkerLostError):
                server.suspected.set()
            leg.failed(error, self._clock.now())
            outcome = "failed"
            raise
        except BaseException:
            leg.abort()
            raise
        finally:
            self._note_end(worker, outcome)

    def _begin(self, worker: WorkerSnapshot, request: GenerationRequest) -> TextLeg:
        tokens, worker_id = len(request.prompt_token_ids), _id(worker)
        work = Work(prefill_tokens=tokens, sequences=1, decoding=1, context_tokens=tokens)
        sent = SentLeg(request.request_id, "whole", worker_id, worker.incarnation, takes_over=False)
        followers = [watch(sent) for watch in self._shared.observation.watchers]
        self.running[worker_id] += 1
        return TextLeg(self._registry.commit_work(worker.address, work), followers)

    def _note_end(self, worker: WorkerSnapshot, outcome: Outcome) -> None:
        """Whoever waits for a place at a full server is told of this one."""
        worker_id = _id(worker)
        self.running[worker_id] -= 1
        self.outcomes[worker_id, outcome] += 1
        self._registry.tell_change()


async def _understood(worker: WorkerSnapshot, answer: Awaitable[None]) -> None:
    """Whatever a server says that nobody has thought of is its failure, and not the gateway's."""
    try:
        await answer
    except AtomeshError:
        raise
    except Exception:  # noqa: BLE001  the door to what servers say
        _log.exception("what the server at %s said was not understood", worker.address)
        raise EngineError("what the server said was not understood; try again") from None


def _id(worker: WorkerSnapshot) -> str:
    return worker.address if worker.description is None else worker.description.worker_id
