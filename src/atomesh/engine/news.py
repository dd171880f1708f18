"""What an engine has to tell beside its tokens."""

from dataclasses import dataclass

from atomesh.protocol.kv_events import KVEvents
from atomesh.protocol.step_sample import StepSample, TransferSample


@dataclass(frozen=True, slots=True)
class EngineNews:
    """Since the last time: what came into the prefix cache and went, how the last step was, what was handed
    over to us.

    `kv_events` are without events when nothing happened; `sample` is None when no step was, or one failed.
    """

    kv_events: KVEvents
    sample: StepSample | None = None
    transfers: tuple[TransferSample, ...] = ()

    @property
    def is_worth_telling(self) -> bool:
        """Also to a gateway for whose requests there is nothing."""
        return bool(self.kv_events.events or self.transfers) or self.sample is not None
