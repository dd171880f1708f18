"""What the mesh learns of its workers' speed: from steps and transfers that they measured."""

from atomesh.mesh.placement.costs import PRIOR_COSTS, Costs
from atomesh.protocol.step_sample import StepSample


class CostModel:
    """Owned by a shell; decisions get the frozen `view()`."""

    def introduce(self, incarnation: str, model: str) -> None:
        """Until it is measured, a worker is expected to be as fast as the others of its model."""

    def observe_step(self, incarnation: str, sample: StepSample) -> None:
        """One step of a worker."""

    def observe_transfer(self, sender: str, receiver: str, num_bytes: int, seconds: float) -> None:
        """KV that went from one worker to another."""

    def forget(self, incarnation: str) -> None:
        """The worker is gone."""

    def view(self) -> Costs:
        return PRIOR_COSTS
