"""Which names that servers of text list become models: none of ours, not without end, not for ever."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from atomesh.clock import Clock
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.gateway.text_models import alias_names
from atomesh.protocol.worker import WorkerDescription

_log = logging.getLogger(__name__)

LOOK_S = 30.0
FORGET_S = 600.0
MAX_OFFERED = 1024


@dataclass(frozen=True, slots=True)
class OperatorsNames:
    """`servers` are those given to servers of text, with model=; `aliases` are as ServedModels has them."""

    servers: Collection[str] = ()
    aliases: Collection[str] = ()


class TextOffers:
    """What workers that take tokens serve is theirs, whoever is heard first; so are the aliases.

    But what the operator has said is served in text, is, and stays.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        clock: Clock,
        names: OperatorsNames,
        offer: Callable[[str], None],
        withdraw: Callable[[str], None],
    ) -> None:
        """`offer` and `withdraw` are called once each in turn, with the model's name."""
        self._registry = registry
        self._clock = clock
        self._said = frozenset(names.servers)
        self._kept = alias_names(names.aliases) - self._said  # no server's to take
        self._offer = offer
        self._withdraw = withdraw
        self._seen_at: dict[str, float] = {}  # of those that are offered, when somebody last served them
        self._told: set[str] = set()

    def hear(self, server: WorkerDescription) -> None:
        """A server of text has said what it serves."""
        for name in dict.fromkeys(text.name for text in server.texts):
            if name in self._kept:
                self._tell(
                    name, f"{server.worker_id} lists the model {name!r}, which is not its own to serve"
                )
            elif name in self._seen_at or self._has_room():
                self._admit(name)
            else:
                self._tell(
                    "", f"{server.worker_id} lists more models than {MAX_OFFERED} in all: one is left out"
                )

    def keep(self, name: str) -> bool:
        """A worker that takes tokens serves `name`: whether it shall be offered as such."""
        if name in self._said:
            self._tell(name, f"a worker serves {name!r}, which model= has given to a server of text")
            return False
        self._kept |= {name}
        if name in self._seen_at:
            self._tell(name, f"the model {name!r} of a server of text gives way to that of a worker")
            self._forget(name)
        return True

    def look(self) -> None:
        """Forget what nobody has served for FORGET_S."""
        now, served = self._clock.now(), self._served()
        for name, seen_at in tuple(self._seen_at.items()):
            if name in served:
                self._seen_at[name] = now
            elif now - seen_at >= FORGET_S and name not in self._said:
                self._forget(name)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _admit(self, name: str) -> None:
        if name not in self._seen_at:
            self._offer(name)
        self._seen_at[name] = self._clock.now()

    def _has_room(self) -> bool:
        """If need be where nobody serves any more what there was."""
        if len(self._seen_at) >= MAX_OFFERED:
            for name in self._seen_at.keys() - self._served() - self._said:
                self._forget(name)
        return len(self._seen_at) < MAX_OFFERED

    def _served(self) -> set[str]:
        told = (worker.description for worker in self._registry.snapshot().workers if worker.state == "ready")
        return {text.name for one in told if one is not None for text in one.texts}

    def _forget(self, name: str) -> None:
        del self._seen_at[name]
        self._withdraw(name)

    def _tell(self, name: str, what: str) -> None:
        """Once of each name of ours."""
        if name not in self._told:
            self._told.add(name)
            _log.warning("%s", what)
