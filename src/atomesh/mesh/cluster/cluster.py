"""What placement is given to look at: the registry, or a part of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from atomesh.mesh.cluster.snapshot import ClusterSnapshot


class Cluster(Protocol):
    """Implemented by WorkerRegistry, whose methods say more."""

    def snapshot(self) -> ClusterSnapshot: ...

    def heeding(self, on_change: Callable[[], None], /) -> AbstractContextManager[None]: ...

    def tell_change(self) -> None: ...
