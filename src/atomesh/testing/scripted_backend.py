"""A backend without a worker: it keeps the legs that it is sent, and what became of them."""

from typing import Any

from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch.dispatcher import Dispatcher, DispatchRules
from atomesh.mesh.dispatch.shared import Shared
from atomesh.mesh.dispatch.tickets import TicketOffice
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, PrefillLeg, TokenDelta
from atomesh.protocol.worker import Role
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.mesh_snapshots import MODEL, worker_description


class ScriptedBackend:
    """`streams` in the order of the legs; `left` says for each that was left whether it was an abort.

    `called_off` names the attempts whose leg never came.
    """

    def __init__(self) -> None:
        self.streams: list[RequestStream] = []
        self.requests: list[GenerationRequest] = []
        self.legs: list[Leg | None] = []
        self.left: list[bool] = []
        self.called_off: list[str] = []

    def abort_attempt(self, request_id: str) -> None:
        self.called_off.append(request_id)

    def submit(self, request: GenerationRequest, leg: Leg | None) -> RequestStream:
        choices = len(leg.outputs) if isinstance(leg, DecodeLeg) else request.n
        is_prefill = isinstance(leg, PrefillLeg)
        self.requests.append(request)
        self.legs.append(leg)
        self.streams.append(RequestStream(choices, self.left.append, is_first_token_all=is_prefill))
        return self.streams[-1]

    def say(self, *token_ids: int, **fields: Any) -> None:
        """One step of the newest leg; `fields` are TokenDelta's."""
        request_id = self.requests[-1].request_id
        self.streams[-1].push([TokenDelta(request_id=request_id, token_ids=list(token_ids), **fields)])


class ScriptedMesh:
    """Ready workers by name, each behind a ScriptedBackend, and a dispatcher over them."""

    def __init__(self, roles: dict[str, Role], rules: DispatchRules | None = None) -> None:
        self.clock = ManualClock()
        self.registry = WorkerRegistry(lambda _: None)
        self.backends = {name: ScriptedBackend() for name in roles}
        secret = b"s" * 32
        self.office = TicketOffice(secret, "gateway-life")
        self.shared = shared = Shared(secret, self.office)
        for name, role in roles.items():
            self.registry.expect(name)
            self.registry.connected(name, worker_description(name, role), self.clock.now())
        self.dispatcher = Dispatcher(
            MODEL, self.registry, self.backends, self.clock, rules or DispatchRules(), shared
        )

    def work(self, name: str) -> tuple[int, int, int]:
        """Legs, prompt tokens and choices that count as this worker's."""
        [worker] = [one for one in self.registry.snapshot().workers if one.address == name]
        return worker.in_flight, worker.prefill_tokens, worker.sequences

    @property
    def leftovers(self) -> list[str]:
        """What nobody answers for any more; empty once all requests are over."""
        busy = [f"{name}: {self.work(name)}" for name in self.backends if any(self.work(name))]
        never_left = [
            f"{name}: {len(backend.streams) - len(backend.left)} legs"
            for name, backend in self.backends.items()
            if len(backend.streams) != len(backend.left)
        ]
        tickets = [f"tickets: {self.office.num_open}"] if self.office.num_open else []
        waiting = [f"waiting: {self.registry.num_heeding}"] if self.registry.num_heeding else []
        return busy + never_left + tickets + waiting
