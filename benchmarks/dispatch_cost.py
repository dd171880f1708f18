"""What the mesh adds to a request: `python benchmarks/dispatch_cost.py [--workers 4 64 256] [--json]`.

Processor time of one request's way through admission, placement, its flow and its account, in front of
workers that answer at once with one token; and of `describe`, which the frontend asks for each request. No
HTTP, no text, no sockets. Every worker reports its load once a request, as busy ones do.
"""

import argparse
import asyncio
import json
import secrets
import time

from atomesh.clock import MonotonicClock
from atomesh.mesh.admission.rate_limits import RateLimits
from atomesh.mesh.admission.tenant import Tenant
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch.admission import AdmissionGate
from atomesh.mesh.dispatch.admitted_service import AdmittedService, Caller
from atomesh.mesh.dispatch.dispatcher import Dispatcher
from atomesh.mesh.dispatch.shared import share
from atomesh.protocol.generation import GenerationRequest, Leg, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import LoadReport
from atomesh.testing.mesh_snapshots import MODEL, worker_description

PROMPT = 256  # tokens, so that hashing them is not what is measured
WARM_UP = 50


class PromptWorker:
    """A backend whose worker has answered before it is asked again."""

    def submit(self, request: GenerationRequest, _leg: Leg | None) -> RequestStream:
        stream = RequestStream(request.n, lambda _: None)
        delta = TokenDelta(request_id=request.request_id, token_ids=[7], finish_reason="length")
        stream.push([delta])
        return stream

    def abort_attempt(self, _request_id: str) -> None:
        """It holds nothing."""


class Mesh:
    def __init__(self, num_workers: int) -> None:
        self._clock = MonotonicClock()
        self._registry = WorkerRegistry(lambda _: None)
        self._names = [f"w{number}" for number in range(num_workers)]
        shared = share(secrets.token_bytes(32))
        for name in self._names:
            description = worker_description(name)
            self._registry.expect(name)
            self._registry.connected(name, description, self._clock.now())
            shared.knowledge.index.exact.join(description.incarnation)
            shared.knowledge.costs.introduce(description.incarnation, MODEL)
        backends = {name: PromptWorker() for name in self._names}
        self._dispatcher = Dispatcher(MODEL, self._registry, backends, self._clock, shared=shared)
        gate = AdmissionGate(MODEL, self._registry, self._clock)
        tenant = Tenant("t")
        limits = RateLimits(tenant, self._clock.now())
        caller = Caller(tenant, limits)
        self._service = AdmittedService(self._dispatcher, gate, self._clock, caller)

    async def measure(self, num_requests: int) -> dict[str, float]:
        taken: list[float] = []
        for number in range(num_requests + WARM_UP):
            self._report()
            request = _request(number)
            began = time.thread_time()
            async for _ in self._service.generate(request):
                pass
            taken.append((time.thread_time() - began) * 1e6)
        return _percentiles("request", taken)

    def measure_describe(self, num_requests: int) -> dict[str, float]:
        taken: list[float] = []
        for _ in range(num_requests + WARM_UP):
            self._report()
            began = time.thread_time()
            self._service.describe()
            taken.append((time.thread_time() - began) * 1e6)
        return _percentiles("describe", taken)

    def _report(self) -> None:
        now = self._clock.now()
        for name in self._names:
            self._registry.heard(name, LoadReport(total_blocks=256, free_blocks=200), now)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 64, 256])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    found = [{"workers": count, **measure(count, options.requests)} for count in options.workers]
    if options.json:
        print(json.dumps({"mesh": found}, indent=2))
        return
    print(f"a prompt of {PROMPT} tokens, µs of processor time")
    for one in found:
        print(
            f"{one['workers']:4.0f} workers  a request p50 {one['request_p50_us']:6.0f}  "
            f"p99 {one['request_p99_us']:6.0f}  describe p50 {one['describe_p50_us']:6.0f}  "
            f"p99 {one['describe_p99_us']:6.0f}"
        )


def measure(num_workers: int, num_requests: int) -> dict[str, float]:
    mesh = Mesh(num_workers)
    return mesh.measure_describe(min(num_requests, 200)) | asyncio.run(mesh.measure(num_requests))


def _request(number: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{number}",
        prompt_token_ids=[number + 1, *range(1, PROMPT)],
        sampling=SamplingSpec(seed=0, max_tokens=1),
    )


def _percentiles(name: str, taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken[WARM_UP:])
    return {
        f"{name}_p50_us": ordered[len(ordered) // 2],
        f"{name}_p99_us": ordered[len(ordered) * 99 // 100],
    }


if __name__ == "__main__":
    main()
