"""What a request says of its answer's reasoning: how hard to think, for how long, whether to tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from atomesh.errors import InvalidRequestError
from atomesh.frontend.reasoning.dialect import ReasoningDialect

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_SWITCHES = ("enable_thinking", "thinking")  # two names of one variable; templates read one of them
_UNLIMITED = -1
_LARGEST = 2**31 - 1


class SaysOfReasoning(Protocol):
    @property
    def reasoning_effort(self) -> str | None: ...

    @property
    def thinking_token_budget(self) -> int | None: ...

    @property
    def include_reasoning(self) -> bool | None: ...

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...


@dataclass(frozen=True, slots=True)
class ReasoningRequest:
    """`max_tokens` None is no limit; `is_wanted` None leaves it to the model."""

    max_tokens: int | None = None
    is_wanted: bool | None = None
    is_hidden: bool = False


def read_reasoning_request(fields: SaysOfReasoning, dialect: ReasoningDialect | None) -> ReasoningRequest:
    """Raises InvalidRequestError, also where a model is to think hard that does not reason at all."""
    effort = fields.reasoning_effort
    _check_effort(effort, dialect)
    max_tokens = _limit(fields.thinking_token_budget)
    is_wanted = effort != "none" if effort is not None else _switch(fields.chat_template_kwargs or {})
    return ReasoningRequest(
        0 if effort == "none" else max_tokens, is_wanted, is_hidden=fields.include_reasoning is False
    )


def template_variables(fields: SaysOfReasoning, dialect: ReasoningDialect | None) -> dict[str, Any]:
    """Those that the client names, and those by which the template hears of the effort."""
    named = fields.chat_template_kwargs or {}
    told: dict[str, Any] = {}
    if (switch := _switch(named)) is not None:
        told = dict.fromkeys(_SWITCHES, switch)
    if dialect is not None and fields.reasoning_effort in EFFORTS:
        told |= dialect.effort_variables(fields.reasoning_effort)
    return {**told, **named}


def _switch(variables: Mapping[str, Any]) -> bool | None:
    values = [variables[name] for name in _SWITCHES if isinstance(variables.get(name), bool)]
    return values[0] if values else None


def _check_effort(effort: str | None, dialect: ReasoningDialect | None) -> None:
    if effort is None:
        return
    if effort not in EFFORTS:
        raise InvalidRequestError(
            f"reasoning_effort is {effort[:40]!r}; it must be one of {', '.join(EFFORTS)}",
            param="reasoning_effort",
        )
    if dialect is None and effort != "none":
        raise InvalidRequestError(
            f"reasoning_effort is {effort!r}, but this model does not reason; leave it out, or send 'none'",
            param="reasoning_effort",
        )


def _limit(budget: int | None) -> int | None:
    if budget is None or budget == _UNLIMITED:
        return None
    if not 0 <= budget <= _LARGEST:
        raise InvalidRequestError(
            f"thinking_token_budget is {budget}; it must lie in [0, {_LARGEST}], or be {_UNLIMITED} for none",
            param="thinking_token_budget",
        )
    return budget
