"""The trace is what Perfetto reads: spans nest, parts fill their step, workers share one time line."""

import json
from collections import defaultdict

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from atomesh.observability.step_trace import WorkerTrace, chrome_trace
from atomesh.protocol.step_trace import StepRecord, StepTrace, TransferRecord

PARTS = ("schedule", "execute", "update")


def trace_of(steps, transfers=()) -> StepTrace:
    return StepTrace(began_ago_s=9.0, is_cut=False, steps=list(steps), transfers=list(transfers))


@st.composite
def step_records(draw):
    """Steps one after another, of parts as short or long as may be."""
    now, steps = 0.0, []
    for _ in range(draw(st.integers(1, 5))):
        times = [now := now + draw(st.floats(0, 2)) for _ in range(4)]
        steps.append(StepRecord(*times, 1, 2, 3, 4, 5, 6))
    return steps


@given(st.lists(step_records(), min_size=1, max_size=3), st.floats(0, 1e6))
def test_spans_nest_and_parts_sum_to_their_step(workers, began_at) -> None:
    traces = [
        WorkerTrace(f"w{n}", "unified", began_at + n, trace_of(steps)) for n, steps in enumerate(workers)
    ]
    loaded = json.loads(msgspec.json.encode(chrome_trace(traces)))

    spans = defaultdict(list)
    for event in loaded["traceEvents"]:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            spans[event["pid"], event["name"]].append(event)
    for pid, steps in enumerate(workers, start=1):
        assert len(spans[pid, "step"]) == len(steps)
        for at, step in enumerate(spans[pid, "step"]):
            parts = [spans[pid, name][at] for name in PARTS]
            edges = [step["ts"], *(round(part["ts"] + part["dur"], 3) for part in parts)]
            assert [part["ts"] for part in parts] == edges[:-1]
            assert edges[-1] == round(step["ts"] + step["dur"], 3)
            assert abs(sum(part["dur"] for part in parts) - step["dur"]) < 0.01
        ends = [round(step["ts"] + step["dur"], 3) for step in spans[pid, "step"]]
        assert all(end <= after["ts"] for end, after in zip(ends, spans[pid, "step"][1:], strict=False))


def test_workers_lie_on_one_time_line_and_transfers_overlap() -> None:
    step = StepRecord(1.0, 1.001, 1.5, 1.501, 1, 32, 2, 70, 3, 0)
    sent = TransferRecord("push", "unix:/d.kv", 1.0, 2.0, 4, 400, "ok")
    late = TransferRecord("push", "unix:/d.kv", 1.5, 2.5, 1, 100, "the deadline has passed")
    loaded = chrome_trace(
        [
            WorkerTrace("decode-0", "decode", 10.5, trace_of([step])),
            WorkerTrace("prefill-0", "prefill", 10.0, trace_of([step], [sent, late])),
        ]
    )
    events = loaded["traceEvents"]
    begins = {event["pid"]: event["ts"] for event in events if event["name"] == "step"}
    assert begins == {1: 1_500_000.0, 2: 1_000_000.0}
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["decode-0 (decode)", "prefill-0 (prefill)"]
    [facts] = [event["args"] for event in events if event["pid"] == 1 and event["name"] == "step"]
    assert facts == {
        "step": 0,
        "prefills": 1,
        "prefill_tokens": 32,
        "decodes": 2,
        "context_tokens": 70,
        "running": 3,
        "waiting": 0,
    }
    pushes = [event for event in events if event["name"] == "push"]
    assert [(event["ph"], event["id"], event["ts"]) for event in pushes] == [
        ("b", "2.0", 1_000_000.0),
        ("e", "2.0", 2_000_000.0),
        ("b", "2.1", 1_500_000.0),
        ("e", "2.1", 2_500_000.0),
    ]
    assert pushes[2]["args"] == {
        "peer": "unix:/d.kv",
        "blocks": 1,
        "bytes": 100,
        "outcome": "the deadline has passed",
    }
    assert loaded["otherData"]["prefill-0"]["transfers"] == 2
