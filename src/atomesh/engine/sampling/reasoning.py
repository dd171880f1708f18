"""What a limit on reasoning makes of the next token: a function of the answer's tokens so far, no state.

So it is the same wherever the answer is continued: after a hand-off, a preemption or a move. Where nothing
can be due, the tokens are not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from atomesh.protocol.reasoning import ReasoningSpec

_MOST_BEFORE_START = 4  # tokens, white space as a rule, that a model may say before it opens its reasoning


@dataclass(frozen=True, slots=True)
class Steering:
    """`forced` is the only token that may follow; without one, an answer that `must_go_on` may not end."""

    forced: int | None = None
    must_go_on: bool = False


FREE = Steering()
_ON = Steering(must_go_on=True)


def steer(spec: ReasoningSpec | None, output: Sequence[int]) -> Steering:
    """What may follow `output`, the answer's tokens so far."""
    if spec is None or _is_idle(spec, len(output)):
        return FREE
    if spec.is_required and not spec.begins_inside and len(output) < len(spec.start):
        return Steering(forced=spec.start[len(output)])
    first = _first_inside(spec, output)
    if first is None:
        return FREE
    end = _find(output, spec.end, first, _search_until(spec, first, len(output)))
    if end is None:
        return _steer_inside(spec, output, first)
    done = len(output) - end - len(spec.end)
    return Steering(forced=spec.then[done]) if done < len(spec.then) else FREE


def _is_idle(spec: ReasoningSpec, num_tokens: int) -> bool:
    """Too early for the limit, or far beyond it: known without a look at the tokens."""
    if spec.is_required or spec.then:
        return False
    if spec.max_tokens is None or num_tokens < spec.max_tokens:
        return True
    before = 0 if spec.begins_inside else _MOST_BEFORE_START + len(spec.start)
    return num_tokens > before + spec.max_tokens + len(spec.end)


def _first_inside(spec: ReasoningSpec, output: Sequence[int]) -> int | None:
    """Where the first token of the reasoning is, or will be; None while it has not begun."""
    if spec.begins_inside:
        return 0
    start = _find(output, spec.start, 0, _MOST_BEFORE_START + len(spec.start))
    return None if start is None else start + len(spec.start)


def _search_until(spec: ReasoningSpec, first: int, num_tokens: int) -> int:
    if spec.max_tokens is None:
        return num_tokens
    return min(num_tokens, first + spec.max_tokens + len(spec.end))


def _steer_inside(spec: ReasoningSpec, output: Sequence[int], first: int) -> Steering:
    if spec.max_tokens is None or len(output) - first < spec.max_tokens:
        return _ON if spec.is_required else FREE
    inside = list(output[max(first, len(output) - len(spec.end) + 1) :])
    said = max(n for n in range(len(inside) + 1) if inside[len(inside) - n :] == list(spec.end[:n]))
    return Steering(forced=spec.end[said])


def _find(output: Sequence[int], wanted: Sequence[int], first: int, until: int) -> int | None:
    """Where `wanted` begins in output[first:until]."""
    last = min(until, len(output)) - len(wanted)
    place = first
    while place <= last:
        try:
            place = output.index(wanted[0], place, last + 1)
        except ValueError:
            return None
        if list(output[place : place + len(wanted)]) == list(wanted):
            return place
        place += 1
    return None
