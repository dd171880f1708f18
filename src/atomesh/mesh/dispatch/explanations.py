"""What was decided for each request, and what came of it; kept for a while for whoever asks why."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from atomesh.mesh.placement.explanation import Explanation, Predicted
from atomesh.protocol.generation import ServingPath, TokenDelta

MAX_ACCOUNTS = 1024
MAX_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Attempt:
    """A decision, `at_s` after the request's first one; `is_rest` of an answer that had begun elsewhere."""

    at_s: float
    is_rest: bool
    explanation: Explanation


@dataclass(slots=True)
class Measured:
    """As far as known: from the last attempt's decision to the first token, what decode waited for KV, and
    prefill for a prefix that it fetched."""

    cached_tokens: int | None = None
    ttft_s: float | None = None
    transfer_s: float | None = None
    fetch_s: float | None = None
    path: ServingPath | None = None
    output_tokens: int = 0


class Errors(Protocol):
    """Hears how far predictions were off."""

    def ttft(self, predicted_s: float, measured_s: float) -> None: ...

    def transfer(self, predicted_s: float, measured_s: float) -> None: ...

    def fetch(self, predicted_s: float, measured_s: float) -> None: ...

    def cached(self, predicted: int, measured: int) -> None: ...


class NoErrors:
    """Nobody listens."""

    def ttft(self, predicted_s: float, measured_s: float) -> None:
        """Said to nobody, as are the others."""

    def transfer(self, predicted_s: float, measured_s: float) -> None: ...

    def fetch(self, predicted_s: float, measured_s: float) -> None: ...

    def cached(self, predicted: int, measured: int) -> None: ...


@dataclass(slots=True, eq=False)
class Account:
    """One request's: its decisions, and what was measured. Owned by whoever drives the request."""

    request_id: str
    model: str
    choices: int
    errors: Errors
    attempts: list[Attempt] = field(default_factory=list)
    measured: Measured = field(default_factory=Measured)
    _began_at: float = 0.0
    _decided_at: float = 0.0

    def decided(self, explanation: Explanation, now: float, *, is_rest: bool) -> None:
        if not self.attempts:
            self._began_at = now
        self._decided_at = now
        self.attempts.append(Attempt(now - self._began_at, is_rest, explanation))
        del self.attempts[:-MAX_ATTEMPTS]

    def saw(self, deltas: Sequence[TokenDelta], now: float) -> None:
        """One step of the answer, as the client has it."""
        measured = self.measured
        is_first = measured.ttft_s is None
        if is_first:
            measured.ttft_s = now - self._decided_at
        for delta in deltas:
            measured.output_tokens += len(delta.token_ids)
            if delta.serving_path is not None:
                measured.path = delta.serving_path
            if delta.cached_tokens is not None:
                measured.cached_tokens = delta.cached_tokens
            if delta.timings is not None:
                self._waited(delta.timings.transfer_s, is_first=is_first)
        if is_first:
            self._began()

    @property
    def predicted(self) -> Predicted | None:
        """By the last decision."""
        return self.attempts[-1].explanation.predicted if self.attempts else None

    def _began(self) -> None:
        predicted, measured = self.predicted, self.measured
        if predicted is None or measured.ttft_s is None:
            return
        self.errors.ttft(predicted.ttft_s, measured.ttft_s)
        if measured.cached_tokens is not None:
            self.errors.cached(predicted.cached_tokens, measured.cached_tokens)

    def _waited(self, transfer_s: float, *, is_first: bool) -> None:
        """For KV, in all: before the first token it can only have been for a prefix."""
        predicted, measured = self.predicted, self.measured
        if is_first:
            if predicted is not None and predicted.fetch_s is not None:
                self.errors.fetch(predicted.fetch_s, transfer_s)
                measured.fetch_s = transfer_s
            return
        moved_s = transfer_s - (measured.fetch_s or 0.0)
        if predicted is not None and measured.transfer_s is None:
            self.errors.transfer(predicted.transfer_s, moved_s)
        measured.transfer_s = moved_s


class ExplanationStore:
    """The last MAX_ACCOUNTS requests', by request id."""

    def __init__(self, errors: Errors | None = None, max_accounts: int = MAX_ACCOUNTS) -> None:
        self._errors = errors or NoErrors()
        self.max_accounts = max_accounts
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    def open(self, request_id: str, model: str, choices: int) -> Account:
        account = self._accounts[request_id] = Account(request_id, model, choices, self._errors)
        while len(self._accounts) > self.max_accounts:
            self._accounts.popitem(last=False)
        return account

    def get(self, request_id: str) -> Account | None:
        return self._accounts.get(request_id)

    def of_answer(self, answer_id: str) -> list[Account]:
        """Those of an answer's prompts, in their order; or the one of that very request id."""
        if (account := self._accounts.get(answer_id)) is not None:
            return [account]
        found: list[Account] = []
        while (account := self._accounts.get(f"{answer_id}-{len(found)}")) is not None:
            found.append(account)
        return found
