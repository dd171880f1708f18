"""A prefill and a decode worker in this process: real engines, threads and KV planes, no gateway."""

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_parts
from atomesh.engine.engine_loop import EngineLoop
from atomesh.engine.options import EngineOptions
from atomesh.engine.structured_output.grammars import GrammarCache
from atomesh.engine.worker_engine import WorkerEngine, assemble
from atomesh.engine.worker_spec import WorkerSpec
from atomesh.frontend.structured_output.model_vocabulary import load_vocabulary
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.fault_points import FaultPoints
from atomesh.protocol.frames import Inspected, MessageDecoder, StepFrame, WorkerMessage
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, PrefillLeg, TokenDelta
from atomesh.protocol.ticket import TICKET_ID_BYTES, Ticket, sign
from atomesh.protocol.worker import PRESETS, Role

if TYPE_CHECKING:
    from atomesh.protocol.step_sample import TransferSample

SECRET = b"the pair's secret, of some length"
PATIENCE_S = 30.0
KV_LEASE_S = 15.0  # a lost push or commit is noticed after a fifteenth
OnFailure = Literal["recompute", "fail"]


class Mailbox:
    """An outlet that keeps what it is sent, by request; `wait_for` sleeps until it has what is wanted.

    `transfers` are what those who follow the news hear of the worker's own.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._decoder = MessageDecoder[WorkerMessage](WorkerMessage)
        self.deltas: dict[str, list[TokenDelta]] = {}
        self.inspected: dict[int, Inspected] = {}
        self.transfers: list[TransferSample] = []

    def send(self, body: bytes, *, is_news: bool = True) -> None:
        with self._news:
            self._keep(self._decoder.decode(body))
            self._news.notify_all()

    def _keep(self, message: WorkerMessage) -> None:
        if isinstance(message, StepFrame):
            self.transfers += message.transfers
            for delta in message.deltas:
                self.deltas.setdefault(delta.request_id, []).append(delta)
        elif isinstance(message, Inspected):
            self.inspected[message.query_id] = message

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Raises AssertionError when it does not hold in time."""
        with self._news:
            if not self._news.wait_for(condition, PATIENCE_S):
                raise AssertionError(f"nothing came of it within {PATIENCE_S} s")


@dataclass
class HandoffWorker:
    """One of the two; `mailbox` is its only gateway."""

    made: WorkerEngine
    loop: EngineLoop
    incarnation: str
    faults: FaultPoints
    mailbox: Mailbox = field(default_factory=Mailbox)
    _queries: int = 0

    @property
    def kv_address(self) -> str:
        return self.made.kv_address or ""

    def inspect(self) -> Inspected:
        """Every block by state and owner, as the engine's thread counts them."""
        self._queries += 1
        query = self._queries
        self.loop.inspect(self.mailbox, query)
        self.mailbox.wait_for(lambda: query in self.mailbox.inspected)
        return self.mailbox.inspected.pop(query)

    def is_idle(self) -> bool:
        """No block is with anybody, but for prefixes that are kept."""
        books = self.inspect()
        return books.states["free"] + books.states["cached"] == books.total

    def stop(self) -> None:
        self.loop.stop()
        self.made.engine.check_invariants()
        self.made.engine.close()


@dataclass
class HandoffPair:
    prefill: HandoffWorker
    decode: HandoffWorker
    _serial: int = 0

    def ticket(self, request_id: str, ttl_s: float = 30.0) -> Ticket:
        self._serial += 1
        return sign(
            SECRET,
            Ticket(
                ticket_id=secrets.token_bytes(TICKET_ID_BYTES),
                gateway="test",
                serial=self._serial,
                request_id=request_id,
                prefill=self.prefill.incarnation,
                decode=self.decode.incarnation,
                ttl_s=ttl_s,
            ),
        )

    def start(self, request: GenerationRequest) -> tuple[Ticket, list[TokenDelta]]:
        """Run the prefill leg to its end; its deltas, one a choice."""
        ticket = self.ticket(request.request_id)
        leg = PrefillLeg(ticket=ticket, decode_address=self.decode.kv_address)
        mailbox = self.prefill.mailbox
        self.prefill.loop.submit(mailbox, request, leg)
        request_id = request.request_id
        mailbox.wait_for(lambda: _is_answered(mailbox.deltas.get(request_id, []), request.n))
        return ticket, mailbox.deltas.pop(request_id)

    def go_on(
        self,
        request: GenerationRequest,
        ticket: Ticket,
        first: Sequence[TokenDelta],
        on_failure: OnFailure = "recompute",
    ) -> list[TokenDelta]:
        """Run the decode leg of the choices that `first` left open."""
        outputs = {delta.choice: delta.token_ids for delta in first if delta.finish_reason is None}
        leg = DecodeLeg(
            outputs=outputs,
            ticket=ticket,
            prefill_address=self.prefill.kv_address,
            on_failure=on_failure,
        )
        mailbox, request_id = self.decode.mailbox, request.request_id
        self.decode.loop.submit(mailbox, request, leg)
        mailbox.wait_for(lambda: _is_over(mailbox.deltas.get(request_id, []), len(outputs)))
        return mailbox.deltas.pop(request_id)

    def answer(self, request: GenerationRequest) -> list[TokenDelta]:
        """Both legs, as a gateway runs them."""
        ticket, first = self.start(request)
        if all(delta.finish_reason is not None for delta in first):
            return first
        return first + self.go_on(request, ticket, first)


@contextmanager
def handoff_pair(model: Path, listen: tuple[str, str], options: EngineOptions) -> Iterator[HandoffPair]:
    """`listen` are the addresses of prefill's and of decode's KV plane. Stopped after the block."""
    with ExitStack() as stack:
        prefill = _start(model, listen[0], options, "prefill")
        stack.callback(prefill.stop)
        decode = _start(model, listen[1], options, "decode")
        stack.callback(decode.stop)
        yield HandoffPair(prefill, decode)


def _start(model: Path, listen: str, options: EngineOptions, role: Role) -> HandoffWorker:
    faults = FaultPoints()
    spec = WorkerSpec(SECRET, secrets.token_hex(16), listen, KV_LEASE_S, faults)
    checkpoint = open_checkpoint(model)
    made = assemble(build_parts(checkpoint, options, "tiny"), spec, MonotonicClock())
    made.engine.obey_grammars(GrammarCache(lambda: load_vocabulary(checkpoint)))
    loop = EngineLoop(made.engine, MonotonicClock(), _cannot_be, made.doorbell)
    loop.set_role(PRESETS[role])
    loop.start()
    return HandoffWorker(made, loop, spec.incarnation, faults)


def _cannot_be(error: Exception) -> None:
    raise AssertionError("the engine has failed") from error


def _is_answered(deltas: list[TokenDelta], choices: int) -> bool:
    return len(deltas) == choices or any(delta.error is not None for delta in deltas)


def _is_over(deltas: list[TokenDelta], choices: int) -> bool:
    return sum(delta.finish_reason is not None for delta in deltas) == choices or any(
        delta.error is not None for delta in deltas
    )
