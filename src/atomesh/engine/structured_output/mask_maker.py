"""Computes, while the model runs, which tokens may follow in each sequence that has a grammar."""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atomesh.engine.core.batch import ScheduledSequence
from atomesh.engine.structured_output.allowed_tokens import AllowedTokens, read_allowed
from atomesh.engine.structured_output.grammar_state import GrammarState
from atomesh.engine.structured_output.prepared import PreparedGrammar
from atomesh.engine.structured_output.step_masks import NO_MASKS, ComingMasks, Masks, StepMasks

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

KEPT_STATES = 64  # of sequences that are not in the step: preempted, or over
MATCHER_THREADS = 2


class MaskMaker:
    """Owned by whoever runs the steps; without grammars it starts nothing, and costs a look at each sequence.

    A sequence's state is kept from step to step, and made anew from its tokens where it is not there.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._states: OrderedDict[int, GrammarState] = OrderedDict()

    def begin(self, sequences: Sequence[ScheduledSequence]) -> StepMasks:
        """Before the model runs. Raises nothing: a grammar's failure is in what comes of it."""
        bound = [one for one in sequences if one.sampling.grammar is not None and one.choices]
        if not bound:
            return NO_MASKS
        return ComingMasks(self._thread.submit(self._make, bound))

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="atomesh-masks")

    @cached_property
    def _matchers(self) -> "LLExecutor":
        from llguidance import LLExecutor

        return LLExecutor(MATCHER_THREADS)

    def close(self) -> None:
        if "_thread" in vars(self):
            self._thread.shutdown(cancel_futures=True)

    def _make(self, sequences: Sequence[ScheduledSequence]) -> Masks:
        states = {one.sequence_id: self._state(one) for one in sequences}
        self._forget(keep=len(states))
        begun = [
            (one, matcher) for one in sequences if (matcher := states[one.sequence_id].matcher) is not None
        ]
        widest = max((states[one.sequence_id].grammar.mask_words for one, _ in begun), default=0)
        bits = self._fill([matcher for _, matcher in begun], widest)
        rows: dict[int, AllowedTokens] = {}
        failures: dict[int, str] = {}
        for (sequence, matcher), row in zip(begun, bits, strict=True):
            if matcher.is_error():
                failures[sequence.sequence_id] = matcher.get_error()
                continue
            eos_ids = states[sequence.sequence_id].grammar.eos_ids
            ends = bool(sequence.sampling.eos_token_ids)
            rows[sequence.sequence_id] = read_allowed(row, self._vocab_size, eos_ids, ends=ends)
        return Masks(states, rows, failures)

    def _state(self, sequence: ScheduledSequence) -> GrammarState:
        grammar = sequence.sampling.grammar
        if not isinstance(grammar, PreparedGrammar):
            raise TypeError("a grammar has come to be obeyed that was never compiled")
        state = self._states.pop(sequence.sequence_id, None) or GrammarState(grammar)
        state.follow(sequence.output_token_ids)
        self._states[sequence.sequence_id] = state
        return state

    def _forget(self, keep: int) -> None:
        while len(self._states) > keep + KEPT_STATES:
            self._states.popitem(last=False)

    def _fill(self, matchers: "Sequence[LLMatcher]", words: int) -> npt.NDArray[np.int32]:
        """[matchers, words of 32 bits]; llguidance takes no other shape than its vocabulary's."""
        bits = np.zeros((len(matchers), words), dtype=np.int32)
        if matchers:
            rows = [(matcher, row) for row, matcher in enumerate(matchers)]
            self._matchers.unsafe_compute_mask_ptr(rows, bits.ctypes.data, bits.strides[0], len(bits))
        return bits
