"""What one step's sampling has to obey, and what it brings: `NO_MASKS` where no sequence has a grammar."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from atomesh.engine.core.batch import SampledToken, ScheduledSequence
from atomesh.engine.structured_output.allowed_tokens import AllowedTokens
from atomesh.engine.structured_output.grammar_state import GrammarState

if TYPE_CHECKING:
    from concurrent.futures import Future

Sampled = tuple[SampledToken, ...]


class StepMasks(Protocol):
    def allowed(self, sequence: ScheduledSequence) -> AllowedTokens | None:
        """None where every token may follow."""
        ...

    def failure(self, sequence: ScheduledSequence) -> str | None:
        """Why the sequence cannot go on."""
        ...

    def settle(self, sequence: ScheduledSequence, sampled: Sampled) -> Sampled:
        """The same tokens; those with which a grammar ends say so."""
        ...


class _NoMasks:
    def allowed(self, sequence: ScheduledSequence) -> None:
        return None

    def failure(self, sequence: ScheduledSequence) -> None:
        return None

    def settle(self, sequence: ScheduledSequence, sampled: Sampled) -> Sampled:
        return sampled


NO_MASKS = _NoMasks()


@dataclass(frozen=True, slots=True)
class Masks:
    """By sequence id."""

    states: Mapping[int, GrammarState]
    rows: Mapping[int, AllowedTokens] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)


class ComingMasks:
    """They are computed while the model runs, and waited for where they are first asked for."""

    def __init__(self, masks: "Future[Masks]") -> None:
        self._masks = masks

    def allowed(self, sequence: ScheduledSequence) -> AllowedTokens | None:
        return self._masks.result().rows.get(sequence.sequence_id)

    def failure(self, sequence: ScheduledSequence) -> str | None:
        return self._masks.result().failures.get(sequence.sequence_id)

    def settle(self, sequence: ScheduledSequence, sampled: Sampled) -> Sampled:
        state = self._masks.result().states.get(sequence.sequence_id)
        if state is None:
            return sampled
        ends = state.advance if len(sampled) == 1 else state.would_end_with
        return tuple(replace(one, ends_answer=ends(one.token_id)) for one in sampled)
