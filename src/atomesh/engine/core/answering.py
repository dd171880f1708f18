"""What sampled tokens mean for the answers: deltas go out, choices end, a prompt's choices part."""

from collections.abc import Sequence

from msgspec.structs import replace

from atomesh.engine.core.batch import SampledToken
from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.remote_kv.sender import KVSender
from atomesh.engine.core.request import RequestState, SequenceState, TokenSequence
from atomesh.engine.core.roster import Roster
from atomesh.engine.core.stop import find_stop
from atomesh.protocol.generation import DecodeLeg, PrefillLeg, TokenDelta

Tokens = Sequence[SampledToken | None]


class Answering:
    def __init__(
        self, roster: Roster, kv: KVCacheManager, sender: KVSender, max_model_len: int, max_num_seqs: int
    ) -> None:
        self.num_tokens = 0  # sampled since the start
        self._roster = roster
        self._kv = kv
        self._sender = sender
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs

    def answer(
        self, sequence: TokenSequence, sampled: tuple[SampledToken, ...], now: float
    ) -> list[TokenDelta]:
        """A sequence is computed to its end: `sampled` has a token for each choice, or none for an echo."""
        tokens: Tokens = sampled or (None,) * len(sequence.choices)
        leg = sequence.request.leg
        if isinstance(leg, PrefillLeg):
            return self._end_prefill_leg(sequence, leg, tokens, now)
        if len(sequence.choices) == 1:
            return [self._append(sequence, tokens[0], now)]
        return self._fork(sequence, tokens, now)

    def _end_prefill_leg(
        self, sequence: TokenSequence, leg: PrefillLeg, tokens: Tokens, now: float
    ) -> list[TokenDelta]:
        """Each choice's first token; whoever goes on from there gets the KV."""
        branches = [sequence.branch(sequence.sequence_id, choice) for choice in sequence.choices]
        deltas = [self._delta(branch, token, now) for branch, token in zip(branches, tokens, strict=True)]
        is_open = any(delta.finish_reason is None for delta in deltas)
        self._sender.finish(leg, now, is_open=is_open)
        self._roster.leave(sequence)
        return deltas

    def _fork(self, parent: TokenSequence, tokens: Tokens, now: float) -> list[TokenDelta]:
        """Split a sequence whose prompt is computed, one for each choice; those beyond the seats wait."""
        branches = self._branches(parent)
        deltas = [self._append(branch, token, now) for branch, token in zip(branches, tokens, strict=True)]
        for branch in reversed(branches):
            if branch.state is SequenceState.RUNNING and len(self._roster.running) > self._max_num_seqs:
                self._roster.send_to_wait(branch)
        return deltas

    def _branches(self, parent: TokenSequence) -> list[TokenSequence]:
        branches = [parent.branch(self._roster.next_sequence_id(), choice) for choice in parent.choices]
        for branch in branches:
            self._kv.fork(parent, branch)
        self._roster.leave(parent)
        for branch in branches:
            self._roster.enter(branch, SequenceState.RUNNING)
        return branches

    def _append(self, sequence: TokenSequence, sampled: SampledToken | None, now: float) -> TokenDelta:
        delta = self._delta(sequence, sampled, now)
        if delta.finish_reason is not None:
            self._roster.leave(sequence)
        return delta

    def _delta(self, sequence: TokenSequence, sampled: SampledToken | None, now: float) -> TokenDelta:
        if sampled is not None:
            sequence.output_token_ids.append(sampled.token_id)
            self.num_tokens += 1
        ends_answer = sampled is not None and sampled.ends_answer
        stop = find_stop(sequence, self._max_model_len, ends_answer=ends_answer)
        state = sequence.request
        delta = TokenDelta(
            request_id=state.request.request_id,
            choice=sequence.choices[0],
            token_ids=[] if sampled is None else [sampled.token_id],
            logprobs=None if sampled is None or sampled.logprobs is None else [sampled.logprobs],
            finish_reason=None if stop is None else stop.reason,
            stop_token_id=None if stop is None else stop.stop_token_id,
            kv_source=sequence.kv_source,
        )
        sequence.kv_source = None
        if state.is_announced:
            return delta
        state.is_announced = True
        return _announce(delta, state, now)


def _announce(delta: TokenDelta, state: RequestState, now: float) -> TokenDelta:
    """A request's first delta also says what its prompt cost; what it cost before a decode leg is known."""
    if isinstance(state.leg, DecodeLeg):
        return replace(delta, timings=state.timings(now))
    wants_logprobs = state.request.sampling.prompt_logprobs is not None
    return replace(
        delta,
        cached_tokens=state.cached_tokens,
        prompt_logprobs=[None, *state.prompt_logprobs] if wants_logprobs else None,
        timings=state.timings(now),
    )
