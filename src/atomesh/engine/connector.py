"""The engine's narrow door to other workers' KV; a null object where there is no hand-off."""

from collections.abc import Mapping
from typing import Protocol

from atomesh.protocol.step_sample import TransferSample


class Connector(Protocol):
    """Stands between the scheduler's `remote_kv` and whatever moves the bytes. Neither call waits."""

    def poll(self) -> None:
        """Tell `remote_kv` what has happened since the last call."""
        ...

    def flush(self) -> None:
        """Carry out the actions that `remote_kv` has decided on."""
        ...

    @property
    def refusals(self) -> Mapping[str, int]:
        """What was refused of strangers and peers before `remote_kv` heard of it, by reason."""
        ...

    def take_samples(self) -> tuple[TransferSample, ...]:
        """How long what came since the last call has taken."""
        ...

    def close(self) -> None:
        """Move nothing any more."""
        ...


class NoConnector:
    def poll(self) -> None:
        return

    def flush(self) -> None:
        return

    @property
    def refusals(self) -> Mapping[str, int]:
        return {}

    def take_samples(self) -> tuple[TransferSample, ...]:
        return ()

    def close(self) -> None:
        return
