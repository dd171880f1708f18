"""Workers' steps as a Chrome trace: JSON for https://ui.perfetto.dev and chrome://tracing.

Source: the Trace Event Format. A worker is a process of the trace; its steps are complete events ("X") of one
thread, each with its schedule, execute and update inside it; transfers, which overlap, are asynchronous ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atomesh.protocol.step_trace import StepRecord, StepTrace, TransferRecord

Event = dict[str, Any]

_STEPS, _TRANSFERS = 1, 2  # threads of the trace
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class WorkerTrace:
    """`began_at` is when the worker's recording began, in seconds on whatever clock all traces share."""

    worker_id: str
    role: str
    began_at: float
    trace: StepTrace


def chrome_trace(workers: Sequence[WorkerTrace]) -> dict[str, Any]:
    """Times begin with the first recording's; microseconds, as the format has it."""
    origin = min((worker.began_at for worker in workers), default=0.0)
    events = [
        event for number, worker in enumerate(workers, start=1) for event in _events(number, worker, origin)
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {worker.worker_id: _summary(worker.trace) for worker in workers},
    }


def _summary(trace: StepTrace) -> dict[str, Any]:
    return {
        "seconds": trace.began_ago_s,
        "steps": len(trace.steps),
        "transfers": len(trace.transfers),
        "transfers_left_out": trace.transfers_left_out,
        "ended_at_a_limit": trace.is_cut,
    }


def _events(pid: int, worker: WorkerTrace, origin: float) -> Iterator[Event]:
    offset_s = worker.began_at - origin
    yield _name(pid, None, "process_name", f"{worker.worker_id} ({worker.role})")
    yield _name(pid, _STEPS, "thread_name", "steps")
    yield _name(pid, _TRANSFERS, "thread_name", "KV transfers")
    for number, step in enumerate(worker.trace.steps):
        yield from _step(pid, number, step, offset_s)
    for number, transfer in enumerate(worker.trace.transfers):
        yield from _transfer(pid, f"{pid}.{number}", transfer, offset_s)


def _name(pid: int, tid: int | None, kind: str, name: str) -> Event:
    thread = {} if tid is None else {"tid": tid}
    return {"ph": "M", "pid": pid, **thread, "name": kind, "args": {"name": name}}


def _step(pid: int, number: int, step: StepRecord, offset_s: float) -> Iterator[Event]:
    facts = {
        "step": number,
        "prefills": step.prefills,
        "prefill_tokens": step.prefill_tokens,
        "decodes": step.decodes,
        "context_tokens": step.context_tokens,
        "running": step.running,
        "waiting": step.waiting,
    }
    spans: tuple[tuple[str, float, float, dict[str, int]], ...] = (
        ("step", step.began_s, step.ended_s, facts),
        ("schedule", step.began_s, step.scheduled_s, {}),
        ("execute", step.scheduled_s, step.executed_s, {}),
        ("update", step.executed_s, step.ended_s, {}),
    )
    for name, began_s, ended_s, args in spans:
        began, ended = _microseconds(began_s + offset_s), _microseconds(ended_s + offset_s)
        yield {
            "ph": "X",
            "pid": pid,
            "tid": _STEPS,
            "cat": "step",
            "name": name,
            "ts": began,
            "dur": round(ended - began, 3),
            "args": args,
        }


def _transfer(pid: int, identity: str, transfer: TransferRecord, offset_s: float) -> Iterable[Event]:
    both = {"pid": pid, "tid": _TRANSFERS, "cat": "kv", "name": transfer.kind, "id": identity}
    facts = {
        "peer": transfer.peer,
        "blocks": transfer.blocks,
        "bytes": transfer.num_bytes,
        "outcome": transfer.outcome,
    }
    began, ended = transfer.began_s + offset_s, transfer.ended_s + offset_s
    return (
        {"ph": "b", **both, "ts": _microseconds(began), "args": facts},
        {"ph": "e", **both, "ts": _microseconds(ended), "args": {}},
    )


def _microseconds(seconds: float) -> float:
    """To the nanosecond: what follows without a gap does so in the trace, too."""
    return round(seconds * _MICROSECONDS, 3)
