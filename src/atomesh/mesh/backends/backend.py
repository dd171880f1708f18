"""What the gateway asks of any worker, whichever engine it runs and however it is reached."""

from typing import Protocol

from atomesh.errors import AtomeshError
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.protocol.frames import Inspected, SetFault
from atomesh.protocol.generation import GenerationRequest, Leg
from atomesh.protocol.step_trace import StepTrace, TraceLimits
from atomesh.protocol.worker import RoleWeights


class WorkerBackend(Protocol):
    """What an engine has no word for does nothing."""

    @property
    def address(self) -> str: ...

    async def run(self) -> None:
        """Keep in touch, also after the engine was gone, until cancelled."""
        ...

    def submit(self, request: GenerationRequest, leg: Leg | None) -> RequestStream:
        """The leg's deltas as they come; they fail with WorkerLostError while the engine is gone."""
        ...

    def abort_attempt(self, request_id: str) -> None:
        """Forget what a hand-off has brought for a leg that will not be sent."""
        ...

    def reset_prefix_cache(self) -> None: ...

    def set_role(self, weights: RoleWeights) -> None:
        """What placement offers the worker from now on."""
        ...

    def set_fault(self, fault: SetFault) -> None: ...

    async def inspect(self) -> Inspected | None:
        """Who owns the worker's KV blocks; None when it does not say."""
        ...

    def start_profile(self, limits: TraceLimits) -> None:
        """Record the worker's steps from now on."""
        ...

    async def stop_profile(self) -> StepTrace | None:
        """What was recorded; None when nothing was."""
        ...

    def fail_all(self, error: AtomeshError) -> None:
        """End every running request with `error`."""
        ...


class QuietBackend:
    """The part of WorkerBackend for which an engine that is not ours has no word."""

    def abort_attempt(self, request_id: str) -> None:
        """It holds nothing for a leg that it has not seen."""

    def reset_prefix_cache(self) -> None:
        """It lets others do that only when started for development."""

    def set_fault(self, fault: SetFault) -> None:
        """Its faults are its own."""

    async def inspect(self) -> Inspected | None:
        return None

    def start_profile(self, limits: TraceLimits) -> None:
        """Its own tools do that."""

    async def stop_profile(self) -> StepTrace | None:
        return None
