"""What is put around a dispatcher's parts for those who observe: by default nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch.decider import Decider
from atomesh.mesh.dispatch.legs import Backend
from atomesh.mesh.dispatch.watch import LegWatcher, WatchedBackends


def _as_it_is(decider: Decider) -> Decider:
    return decider


@dataclass(frozen=True, slots=True)
class Observation:
    """`watchers` hear of every leg; `around` wraps whoever decides where requests go."""

    watchers: tuple[LegWatcher, ...] = ()
    around: Callable[[Decider], Decider] = _as_it_is

    def backends(self, inner: Mapping[str, Backend], registry: WorkerRegistry) -> Mapping[str, Backend]:
        return WatchedBackends(inner, self.watchers, registry.description) if self.watchers else inner


NOTHING_OBSERVED = Observation()
