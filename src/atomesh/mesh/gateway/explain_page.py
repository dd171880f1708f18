"""Why requests went where they went, as JSON: times in seconds, lengths in tokens."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from atomesh.mesh.dispatch.explanations import Account, Attempt


def describe_accounts(answer_id: str, accounts: Sequence[Account]) -> dict[str, Any]:
    """One answer's requests, one for each of its prompts."""
    return {
        "id": answer_id,
        "model": accounts[0].model if accounts else None,
        "requests": [_describe(account) for account in accounts],
    }


def _describe(account: Account) -> dict[str, Any]:
    return {
        "request_id": account.request_id,
        "attempts": [_attempt(attempt) for attempt in account.attempts],
        "measured": asdict(account.measured),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    explanation = attempt.explanation
    runner_up = explanation.runner_up
    return {
        "at_s": attempt.at_s,
        "is_rest": attempt.is_rest,
        "policy": explanation.policy,
        "chosen": asdict(explanation.chosen),
        "runner_up": None if runner_up is None else asdict(runner_up),
        "predicted": asdict(explanation.predicted),
        "parameters": dict(explanation.parameters),
        "candidates": [asdict(candidate) for candidate in explanation.candidates],
        "rejected": [asdict(rejection) for rejection in explanation.rejected],
    }
