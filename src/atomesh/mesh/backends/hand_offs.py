"""Hand-offs between two engines that are not ours: what the one leg must know of the other.

The engines move the KV themselves. The gateway carries what the prefill server says to the decode server,
and ends each leg when the other has failed.
"""

import asyncio
from typing import Any

from atomesh.errors import AtomeshError
from atomesh.mesh.request_flow.relayed_flow import OtherLegFailedError


class HandOff:
    """One attempt's. `params` is what the prefill server gave, None where it had nothing to give."""

    def __init__(self) -> None:
        self.legs = 0
        self._params: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def give(self, params: dict[str, Any] | None) -> None:
        if not self._params.done():
            self._params.set_result(params)

    async def params(self) -> dict[str, Any] | None:
        """Waits for `give`. Never comes back when the prefill leg fails: see `until_broken`."""
        return await asyncio.shield(self._params)

    def break_off(self) -> None:
        """This leg has failed, so the other will."""
        if not self._broken.done():
            self._broken.set_result(None)

    async def until_broken(self) -> AtomeshError:
        await asyncio.shield(self._broken)
        return OtherLegFailedError()


class HandOffs:
    """By attempt, from its first leg to the end of its last."""

    def __init__(self) -> None:
        self._open: dict[str, HandOff] = {}

    def __len__(self) -> int:
        return len(self._open)

    def join(self, attempt: str) -> HandOff:
        """To be called before any of the legs' work is awaited, and `leave` after it."""
        hand_off = self._open.setdefault(attempt, HandOff())
        hand_off.legs += 1
        return hand_off

    def leave(self, attempt: str) -> None:
        hand_off = self._open[attempt]
        hand_off.legs -= 1
        if hand_off.legs == 0:
            del self._open[attempt]
