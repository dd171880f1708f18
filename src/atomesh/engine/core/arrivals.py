"""Requests on their way in: their sequences wait for KV that another worker computed, or a part of it."""

from atomesh.engine.core.remote_kv.fetcher import KVFetcher
from atomesh.engine.core.remote_kv.intake import Claim
from atomesh.engine.core.remote_kv.receiver import KVReceiver, Settlement
from atomesh.engine.core.request import RequestState, SequenceState
from atomesh.engine.core.roster import Roster
from atomesh.protocol.generation import DecodeLeg


class Arrivals:
    def __init__(self, roster: Roster, receiver: KVReceiver, fetcher: KVFetcher) -> None:
        self._roster = roster
        self._receiver = receiver
        self._fetcher = fetcher

    @property
    def has_news(self) -> bool:
        return self._receiver.has_settled or self._fetcher.has_settled

    def claim(self, state: RequestState, now: float) -> None:
        """A request has come; with a ticket it need not wait to compute its prompt."""
        leg = state.leg
        if not isinstance(leg, DecodeLeg):
            self._fetcher.want(state, now)
        if not isinstance(leg, DecodeLeg) or leg.ticket is None:
            return
        if self._receiver.claim(Claim(state, leg.ticket, leg.prefill_address), now):
            self._move(state, SequenceState.ARRIVING)

    def pending_pull(self, state: RequestState) -> Claim | None:
        return self._receiver.pending_pull(state)

    def pull(self, claim: Claim, reserve: int, now: float) -> bool:
        """Ask for KV that is kept elsewhere; False if less than `reserve` blocks would be left."""
        if not self._receiver.pull(claim, reserve, now):
            return False
        self._move(claim.request, SequenceState.ARRIVING)
        return True

    def fetch(self, state: RequestState, reserve: int, now: float) -> bool:
        """Ask for a prefix that lies elsewhere; False when the request is to do without."""
        if not self._fetcher.begin(state, reserve, now):
            return False
        self._roster.move(state.first_sequence, SequenceState.ARRIVING)
        return True

    def settle_fetches(self, now: float) -> None:
        """Those whose prefix has come, or will not, have their turn again."""
        for state in self._fetcher.take_settled():
            state.fetch_s = now - state.fetch_began_s
            self._roster.move(state.first_sequence, SequenceState.WAITING)

    def settle(self, now: float) -> list[Settlement]:
        """Let those whose KV has come, or will not, go on; the failures that end their requests."""
        ended = []
        for settlement in self._receiver.take_settled():
            state = settlement.request
            state.settled_s = now
            if settlement.failure is None:
                self._move(state, SequenceState.ARRIVED)
            elif isinstance(state.leg, DecodeLeg) and state.leg.on_failure == "fail":
                ended.append(settlement)
            else:
                self._move(state, SequenceState.WAITING)
        return ended

    def _move(self, state: RequestState, to: SequenceState) -> None:
        for sequence in state.sequences.values():
            self._roster.move(sequence, to)
            sequence.kv_source = "transferred" if to is SequenceState.ARRIVED else "recomputed"
