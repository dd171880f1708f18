"""Names that the operator has written down and no model has: said once each, when models have been there."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from atomesh.clock import Clock
from atomesh.frontend.served_model import ServedModel

_log = logging.getLogger(__name__)

LOOK_S = 2.0
GRACE_S = 10.0  # from the last new model: others may be on their way
MAX_SAID = 65_536
MAX_TOLD = 20

Named = Mapping[str, str]  # a model's name → where it is written


class UnservedNames:
    """`named` is asked at every look; `models` are those there are."""

    def __init__(
        self, named: Callable[[], Named], models: Callable[[], Sequence[ServedModel]], clock: Clock
    ) -> None:
        self._named = named
        self._models = models
        self._clock = clock
        self._seen: frozenset[str] = frozenset()
        self._settled_at = 0.0
        self._said: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Say what is to be said by now."""
        models = self._models()
        served = frozenset(name for model in models for name in (model.name, *model.aliases))
        if served != self._seen:
            self._seen, self._settled_at = served, self._clock.now() + GRACE_S
        if not served or self._clock.now() < self._settled_at:
            return
        unserved = [item for item in self._named().items() if item[0] not in served]
        news = [item for item in unserved if item not in self._said][: MAX_SAID - len(self._said)]
        self._said.update(news)
        for name, where in news[:MAX_TOLD]:
            _log.warning(
                "no model is called %r, which %s names; there are %s",
                name,
                where,
                ", ".join(sorted(served))[:500],
            )
        if len(news) > MAX_TOLD:
            _log.warning("nor are there models for %d more such names", len(news) - MAX_TOLD)


def aliased_models(aliases: Iterable[str]) -> dict[str, str]:
    """Of NAME=MODEL, each MODEL."""
    split = ((alias, alias.partition("=")) for alias in aliases)
    return {of: f"--model-alias {alias}" for alias, (_, equals, of) in split if equals}
