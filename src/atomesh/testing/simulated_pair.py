"""A prefill and a decode worker, their KV plane, and a gateway's part: tickets, legs, joined answers.

Everything moves by hand: the engines' steps, the KV plane's entries (`links`), the decode legs, the clock.
"""

from dataclasses import dataclass, field
from typing import Literal

from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, PrefillLeg, TokenDelta
from atomesh.protocol.ticket import TICKET_ID_BYTES, Ticket, sign
from atomesh.testing.scripted_engine import SECRET, ScriptedEngine
from atomesh.testing.simulated_links import Route, SimulatedLinks

OnFailure = Literal["recompute", "fail"]
PREFILL, DECODE = "kv of p", "kv of d"
ASK: Route = (PREFILL, DECODE, PREFILL)  # the prefill worker's words over its own connection
REPLY: Route = (PREFILL, DECODE, DECODE)
PULL: Route = (DECODE, PREFILL, DECODE)
PULL_REPLY: Route = (DECODE, PREFILL, PREFILL)
TTL_S = 600.0


@dataclass(slots=True)
class HandedOff:
    """One request, as its client sees it: tokens and last deltas by choice."""

    request: GenerationRequest
    ticket: Ticket
    on_failure: OnFailure
    tokens: dict[int, list[int]] = field(default_factory=dict)
    last: dict[int, TokenDelta] = field(default_factory=dict)
    sources: dict[int, str] = field(default_factory=dict)
    is_decode_due: bool = False
    is_aborted: bool = False

    @property
    def error(self) -> TokenDelta | None:
        return next((delta for delta in self.last.values() if delta.error is not None), None)

    @property
    def is_over(self) -> bool:
        if self.is_aborted or self.error is not None:
            return True
        ends = [delta.finish_reason for delta in self.last.values()]
        return len(ends) == self.request.n and None not in ends

    def take(self, delta: TokenDelta) -> None:
        self.tokens.setdefault(delta.choice, []).extend(delta.token_ids)
        self.last[delta.choice] = delta
        if delta.kv_source is not None:
            self.sources[delta.choice] = delta.kv_source


class SimulatedPair:
    def __init__(self, prefill: SchedulerConfig, decode: SchedulerConfig, watermark: float = 0.1) -> None:
        def engine(config: SchedulerConfig, incarnation: str) -> ScriptedEngine:
            return ScriptedEngine(config, remote=RemoteKVConfig(SECRET, incarnation, watermark=watermark))

        self.prefill = engine(prefill, "p")
        self.decode = engine(decode, "d")
        self.links = SimulatedLinks({PREFILL: self.prefill, DECODE: self.decode})
        self.requests: dict[str, HandedOff] = {}

    def ticket(self, request_id: str, serial: int) -> Ticket:
        return sign(
            SECRET,
            Ticket(
                ticket_id=serial.to_bytes(TICKET_ID_BYTES, "big"),
                gateway="g",
                serial=serial,
                request_id=request_id,
                prefill="p",
                decode="d",
                ttl_s=TTL_S,
            ),
        )

    def submit(self, request: GenerationRequest, on_failure: OnFailure = "recompute") -> HandedOff:
        ticket = self.ticket(request.request_id, len(self.requests) + 1)
        handed_off = HandedOff(request, ticket, on_failure)
        self.prefill.engine.add(request, PrefillLeg(ticket=ticket, decode_address=DECODE))
        self.requests[request.request_id] = handed_off
        return handed_off

    def start_decode(self, handed_off: HandedOff) -> None:
        """Send the decode leg that is due."""
        handed_off.is_decode_due = False
        leg = DecodeLeg(
            outputs={
                choice: token_ids.copy()
                for choice, token_ids in handed_off.tokens.items()
                if handed_off.last[choice].finish_reason is None
            },
            ticket=handed_off.ticket,
            prefill_address=PREFILL,
            on_failure=handed_off.on_failure,
        )
        self.decode.engine.add(handed_off.request, leg)
        self.links.flush()

    def abort(self, handed_off: HandedOff) -> None:
        handed_off.is_aborted = True
        handed_off.is_decode_due = False
        for worker in (self.prefill, self.decode):
            worker.engine.abort(handed_off.request.request_id)
        self.links.flush()

    def step(self, worker: ScriptedEngine) -> None:
        """One step; what it brings for requests that were added to the engine itself stays there."""
        for delta in worker.step():
            handed_off = self.requests.get(delta.request_id)
            if handed_off is not None and not handed_off.is_aborted:
                handed_off.take(delta)
                is_first = worker is self.prefill and delta.finish_reason is None
                handed_off.is_decode_due = is_first or handed_off.is_decode_due
        self.links.flush()

    def drain(self, *routes: Route) -> None:
        """Let through all that is under way on these routes, and what follows from it there."""
        while waiting := [route for route in routes if route in self.links.routes]:
            self.links.advance(waiting[0])

    def check_invariants(self) -> None:
        for worker in (self.prefill, self.decode):
            worker.engine.check_invariants()

    def advance_clock(self, seconds: float) -> None:
        for worker in (self.prefill, self.decode):
            worker.clock.advance(seconds)
            worker.engine.poll()
        self.links.flush()

    def run(self, max_rounds: int = 2000) -> None:
        """Let everything move, in turn, until nothing is left to do; time passes only when nothing moves."""
        for _ in range(max_rounds):
            self._move_all()
            self.check_invariants()
            if self.is_at_rest:
                return
        raise AssertionError(f"there is work left after {max_rounds} rounds")

    @property
    def is_at_rest(self) -> bool:
        """All requests are over, nothing is under way, and no block is anybody's."""
        return (
            all(one.is_over for one in self.requests.values())
            and not self.links.routes
            and not self.links.num_fences
            and all(is_idle(worker) for worker in (self.prefill, self.decode))
        )

    def _move_all(self) -> None:
        has_moved = False
        for route in self.links.routes:
            self.links.advance(route)
            has_moved = True
        while self.links.num_fences:
            self.links.fence()
            has_moved = True
        for handed_off in self.requests.values():
            if handed_off.is_decode_due:
                self.start_decode(handed_off)
                has_moved = True
        for worker in (self.prefill, self.decode):
            if worker.engine.has_work():
                self.step(worker)
                has_moved = True
        if not has_moved:
            self.advance_clock(1.0)


def is_idle(worker: ScriptedEngine) -> bool:
    """No block is held, reserved or quarantined."""
    states = worker.engine.take_stock().states
    return states["free"] + states["cached"] == worker.config.num_blocks
