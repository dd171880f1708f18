"""The KV plane between scripted engines, with every delay in the test's hands.

Each direction of each connection is a queue in order; nothing moves until `advance` lets the first entry of
one of them through. A pushed block is read when it lands, not when it was sent, and what is under way to a
cancelled grant is still written until the fence: whoever frees a block too early finds foreign KV in it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from atomesh.engine.core.remote_kv.actions import Action, Admit, Cancel, Push, Send
from atomesh.protocol.kv_handoff import HandoffMessage
from atomesh.testing.scripted_engine import ScriptedEngine
from atomesh.testing.scripted_executor import Block

Route = tuple[str, str, str]
"""Who called whom, and who speaks: a connection's end is named by the address if we called it."""


@dataclass(frozen=True, slots=True)
class _Landing:
    """A push on its way."""

    push: Push
    read: Callable[[int], Block]


@dataclass(frozen=True, slots=True)
class _Receipt:
    """The answer to a push; a `reason` means that it failed."""

    push_id: int
    reason: str | None = None


@dataclass(slots=True)
class _Admission:
    route: Route
    targets: Mapping[int, int]
    is_cancelled: bool = False


@dataclass(slots=True)
class _Worker:
    engine: ScriptedEngine
    admissions: dict[bytes, _Admission] = field(default_factory=dict)


class SimulatedLinks:
    def __init__(self, engines: Mapping[str, ScriptedEngine]) -> None:
        """`engines` by the address of their KV plane."""
        self._workers = {address: _Worker(engine) for address, engine in engines.items()}
        self._queues: dict[Route, deque[HandoffMessage | _Landing | _Receipt]] = {}
        self._fences: deque[tuple[str, bytes]] = deque()

    def flush(self) -> None:
        """Carry out what the engines want done. Call it after every step, and after every call of theirs."""
        for address, worker in self._workers.items():
            for action in worker.engine.scheduler.remote_kv.take_actions():
                self._carry_out(address, action)

    @property
    def routes(self) -> list[Route]:
        """The queues in which something is under way."""
        return [route for route, queue in self._queues.items() if queue]

    @property
    def num_fences(self) -> int:
        return len(self._fences)

    def advance(self, route: Route, *, fault: str | None = None) -> None:
        """Let the first entry of a queue arrive. A `fault` befalls a push: it is "lost" or "damaged"."""
        caller, callee, speaker = route
        hearer = callee if speaker == caller else caller
        entry = self._queues[route].popleft()
        remote_kv = self._workers[hearer].engine.scheduler.remote_kv
        now = self._workers[hearer].engine.clock.now()
        if isinstance(entry, _Landing):
            self._land(route, hearer, entry, fault)
        elif not isinstance(entry, _Receipt):
            said_by = self._workers[speaker].engine.scheduler.remote_kv.incarnation
            remote_kv.heard(self._peer(route, hearer), entry, now, said_by)
        elif entry.reason is None:
            remote_kv.pushed(entry.push_id, now)
        else:
            remote_kv.push_failed(entry.push_id, entry.reason, now)
        self.flush()

    def lose(self, route: Route) -> HandoffMessage | _Landing | _Receipt:
        """The first entry of a queue never arrives, though the connection stands: only a fault does that."""
        return self._queues[route].popleft()

    def restart(self, address: str, engine: ScriptedEngine) -> None:
        """Another life at the same address: nobody is connected to it, and it knows nothing of before."""
        for route in [route for route in self._queues if address in route[:2]]:
            if route in self._queues:
                self.cut(route)
        self._workers[address] = _Worker(engine)

    def fence(self) -> None:
        """The oldest cancelled grant is fenced."""
        address, grant = self._fences.popleft()
        worker = self._workers[address]
        worker.admissions.pop(grant, None)
        worker.engine.scheduler.remote_kv.fenced(grant, worker.engine.clock.now())
        self.flush()

    def cut(self, route: Route) -> None:
        """Break a connection: what is under way in both directions is lost, and both ends hear of it."""
        caller, callee, _ = route
        for speaker in (caller, callee):
            self._queues.pop((caller, callee, speaker), None)
        for end in (caller, callee):
            engine = self._workers[end].engine
            peer = self._peer((caller, callee, end), end)
            engine.scheduler.remote_kv.peer_lost(peer, "cut", engine.clock.now())
        self.flush()

    def _carry_out(self, address: str, action: Action) -> None:
        match action:
            case Send(peer, message):
                self._queue(address, peer).append(message)
            case Push(peer):
                self._queue(address, peer).append(
                    _Landing(action, self._workers[address].engine.executor.block)
                )
            case Admit(peer, grant, targets):
                admission = _Admission(self._route(address, peer), targets)
                self._workers[address].admissions[grant] = admission
            case Cancel(grant):
                if grant in self._workers[address].admissions:
                    self._workers[address].admissions[grant].is_cancelled = True
                self._fences.append((address, grant))

    def _land(self, route: Route, hearer: str, landing: _Landing, fault: str | None) -> None:
        push = landing.push
        admission = self._workers[hearer].admissions.get(push.grant)
        if admission is None or admission.route[:2] != route[:2]:
            reason: str | None = "refused"
        elif fault == "lost":
            reason = "past its deadline"
        else:
            reason = self._write(self._workers[hearer], landing, admission, fault)
        self._queues.setdefault((*route[:2], hearer), deque()).append(_Receipt(push.push_id, reason))

    def _write(
        self, worker: _Worker, landing: _Landing, admission: _Admission, fault: str | None
    ) -> str | None:
        """Put the blocks where they were admitted; why it failed, if it did."""
        remote_kv, now, push = worker.engine.scheduler.remote_kv, worker.engine.clock.now(), landing.push
        for index, block in push.blocks.items():
            content = landing.read(block)
            wrong: Block = (None,) * len(content)
            worker.engine.executor.overwrite(admission.targets[index], wrong if fault else content)
        if admission.is_cancelled:
            return "cancelled"
        if fault is not None:
            remote_kv.damaged(push.grant, fault, now)
            return fault
        remote_kv.received(push.grant, tuple(push.blocks), now)
        return None

    def _queue(self, address: str, peer: str) -> deque[HandoffMessage | _Landing | _Receipt]:
        return self._queues.setdefault(self._route(address, peer), deque())

    def _route(self, address: str, peer: str) -> Route:
        """Where `address` speaks when it names its peer so."""
        if peer in self._workers:
            return (address, peer, address)
        return (peer.removeprefix("caller "), address, address)

    def _peer(self, route: Route, hearer: str) -> str:
        """How `hearer` names the other end."""
        caller, callee, _ = route
        return callee if hearer == caller else f"caller {caller}"
