"""The asking half of a prefix fetch: a request's turn has come, and another worker holds its beginning.

    wanted ──its turn──▶ FETCHING ──all there──────────────▶ settled: the prefix cache has the blocks
       │                    └─ refused, lost, late, damaged ─▶ settled: the rest is computed
       └─ there already, or cannot be had ─▶ computed, and nobody is asked

A request never fails of it, and never waits longer than its patience: what it would save by it, and
a third of the lease at most.
"""

from collections.abc import Iterable, Iterator
from math import isnan

from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.remote_kv.actions import Admit, Cancel
from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.engine.core.remote_kv.grant_mint import GrantMint
from atomesh.engine.core.remote_kv.intake import Intake, Transfer
from atomesh.engine.core.remote_kv.outbox import Outbox
from atomesh.engine.core.remote_kv.ticket_gate import TicketGate
from atomesh.engine.core.request import RequestState
from atomesh.protocol.generation import LEAST_PATIENCE_S, PrefixFetch
from atomesh.protocol.kv_handoff import Fetch, Refuse, Reserve


class KVFetcher:
    def __init__(
        self,
        config: RemoteKVConfig,
        kv: KVCacheManager,
        gate: TicketGate,
        outbox: Outbox,
        mint: GrantMint,
    ) -> None:
        self._config = config
        self._kv = kv
        self._gate = gate
        self._outbox = outbox
        self._mint = mint
        self._intake = Intake(kv)
        self._wanted: dict[RequestState, PrefixFetch] = {}
        self._fetching: dict[bytes, RequestState] = {}
        self._settled: list[RequestState] = []

    def want(self, request: RequestState, now: float) -> None:
        """A request has come; when its turn does, it asks for its prefix, if it may and can use it."""
        fetch = request.request.fetch
        if fetch is None or not self._kv.can_find(request.first_sequence):
            return
        reason = self._gate.refusal(fetch.ticket, "fetch", now)
        if reason is not None:
            self._outbox.refusals[reason] += 1
        else:
            self._wanted[request] = fetch

    def begin(self, request: RequestState, spare: int, now: float) -> bool:
        """Its turn has come: ask; False when it is to be admitted without, for lack of room or of need."""
        fetch = self._wanted.get(request)
        if fetch is None:
            return False
        sequence = request.first_sequence
        num_blocks = min(fetch.num_tokens, sequence.num_tokens - 1) // self._kv.block_size
        num_tokens = max(num_blocks, 0) * self._kv.block_size
        wish = Reserve(fetch.ticket, list(self._kv.full_hashes(sequence, num_tokens)), num_tokens)
        first = len(self._kv.match(sequence))
        if first >= num_blocks:
            del self._wanted[request]
            self._gate.bury(fetch.ticket.ticket_id)
            self._outbox.transfers["fetched_not_needed"] += 1
            return False
        if not self._intake.has_room(wish, spare + self._kv.num_blocks_of(sequence.num_tokens) - num_blocks):
            return False
        del self._wanted[request]
        self._ask(request, fetch, wish, now)
        return True

    def received(self, grant: bytes, indices: Iterable[int]) -> None:
        transfer = self._intake.of_grant(grant)
        if transfer is not None:
            self._intake.fill(transfer, indices)
            if not transfer.missing:
                self._end(transfer, "complete")

    def damaged(self, grant: bytes) -> None:
        transfer = self._intake.of_grant(grant)
        if transfer is not None:
            self._end(transfer, "damaged")

    def refused(self, peer: str, message: Refuse) -> None:
        transfer = self._intake.of_ticket(message.ticket_id)
        if transfer is not None and transfer.peer == peer:
            self._end(transfer, f"refused_{message.reason}")

    def fenced(self, grant: bytes) -> None:
        self._intake.fenced(grant)

    def peer_lost(self, peer: str) -> None:
        for transfer in self._intake:
            if transfer.peer == peer:
                self._end(transfer, "peer_lost")

    def tick(self, now: float) -> None:
        for transfer in self._intake:
            if now >= transfer.lease_end_s:
                self._end(transfer, "late")

    def drop(self, request: RequestState) -> None:
        """The request has ended: its prefix is not wanted any more."""
        fetch = self._wanted.pop(request, None)
        if fetch is not None:
            self._gate.bury(fetch.ticket.ticket_id)
        for transfer in self._intake:
            if self._fetching[transfer.ticket.ticket_id] is request:
                self._end(transfer, "aborted")
        self._settled = [one for one in self._settled if one is not request]

    def yield_blocks(self) -> bool:
        """Give up the newest fetch; False if there is none."""
        newest = next(reversed(tuple(self._intake)), None)
        if newest is not None:
            self._end(newest, "yielded")
        return newest is not None

    @property
    def has_settled(self) -> bool:
        return bool(self._settled)

    def take_settled(self) -> list[RequestState]:
        """The requests that go on, with what has come of their prefix in the prefix cache."""
        settled, self._settled = self._settled, []
        return settled

    def deadlines(self) -> Iterator[float]:
        yield from (transfer.lease_end_s for transfer in self._intake)

    def claims(self) -> Iterator[RequestState]:
        """The requests whose prefix is on its way or has just been settled."""
        yield from self._fetching.values()
        yield from self._settled

    def holds(self) -> Iterator[tuple[str, list[int]]]:
        """Owners, and the blocks that are held for them."""
        return self._intake.holds()

    @property
    def num_holds(self) -> int:
        """How many holds `holds` names."""
        return self._intake.num_holds

    def _ask(self, request: RequestState, fetch: PrefixFetch, wish: Reserve, now: float) -> None:
        ticket, peer = fetch.ticket, fetch.address
        transfer = self._intake.open(wish, peer, self._mint.mint(ticket), now + self._patience_s(fetch))
        self._fetching[ticket.ticket_id] = request
        request.fetch_began_s = now
        missing = sorted(transfer.missing)
        targets = {index: transfer.table[index] for index in missing}
        self._outbox.actions.append(Admit(peer, transfer.grant, targets))
        hashes = wish.block_hashes[missing[0] :]
        self._outbox.send(peer, Fetch(ticket, transfer.grant, missing[0], hashes))

    def _patience_s(self, fetch: PrefixFetch) -> float:
        """What is asked for, within bounds; the least for what is no number."""
        asked_s = LEAST_PATIENCE_S if isnan(fetch.patience_s) else fetch.patience_s
        return min(max(asked_s, LEAST_PATIENCE_S), self._config.grant_lease_s)

    def _end(self, transfer: Transfer, outcome: str) -> None:
        """Whatever came is in the prefix cache, and nobody's."""
        ticket_id = transfer.ticket.ticket_id
        self._gate.bury(ticket_id)
        self._outbox.transfers[f"fetched_{outcome}"] += 1
        if self._intake.close(transfer):
            self._outbox.actions.append(Cancel(transfer.grant))
        self._settled.append(self._fetching.pop(ticket_id))
