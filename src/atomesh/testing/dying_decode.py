"""Answers whose decode worker is killed when so many of their tokens have come."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from atomesh.testing.completion_client import Outcome
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.served_process import wait_for


def decoders_at_work(bench: PDBench) -> list[dict[str, Any]]:
    return [worker for worker in bench.workers("decode") if worker["in_flight"]]


def killed_at(bench: PDBench, prompt: Sequence[int], at: int, fields: dict[str, Any]) -> Outcome:
    """The answer of which so many tokens had come when its decode worker was killed."""
    bench.arm("decode", "step_delay", 300, 0.03)  # so that it is not over before it is killed
    if at == 0:
        bench.arm("prefill", "step_delay", 20, 0.4)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(bench.client.complete, prompt, **fields)
            wait_for(lambda: len(decoders_at_work(bench)) == 1)
            bench.end(decoders_at_work(bench)[0])
            return asked.result()
    stream = bench.client.stream(prompt, **fields)
    count = 0
    while count < at:
        count += len(stream.next_tokens())
    bench.end(decoders_at_work(bench)[0])
    return stream.finish()
