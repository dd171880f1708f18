"""Whose request is whose: what gateways call their requests, and what the engine calls them."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Protocol

import msgspec

from atomesh.errors import AtomeshError
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, PrefillLeg, TokenDelta

MAX_ENDED_LEGS = 4096


class Outlet(Protocol):
    """Where one gateway's messages go, encoded. `send` never blocks, never raises, and may be called from any
    thread. Without `is_news` the message says nothing of the engine's load, and the gateway still waits for
    word of it."""

    def send(self, body: bytes, *, is_news: bool = True) -> None: ...


@dataclass(slots=True)
class LiveRequest:
    """`request_id` is the gateway's word for it, unique only among its own."""

    outlet: Outlet
    request_id: str
    open_choices: int
    is_prefill_leg: bool


class LiveRequests:
    """Engine ids are never used twice. Remembers prefill legs that are over: their KV may still be here."""

    def __init__(self) -> None:
        self._live: dict[str, LiveRequest] = {}
        self._engine_ids: defaultdict[Outlet, dict[str, str]] = defaultdict(dict)
        self._ended_legs: OrderedDict[tuple[Outlet, str], str] = OrderedDict()
        self._num_admitted = 0

    def __len__(self) -> int:
        return len(self._live)

    def next_engine_id(self, outlet: Outlet, request_id: str) -> str:
        """Raises AtomeshError when this gateway's `request_id` is taken."""
        if request_id in self._engine_ids[outlet]:
            raise AtomeshError("the request id is already in use on this connection")
        self._num_admitted += 1
        return str(self._num_admitted)

    def admit(self, engine_id: str, outlet: Outlet, request: GenerationRequest, leg: Leg | None) -> None:
        choices = len(leg.outputs) if isinstance(leg, DecodeLeg) else request.n
        self._live[engine_id] = LiveRequest(outlet, request.request_id, choices, isinstance(leg, PrefillLeg))
        self._engine_ids[outlet][request.request_id] = engine_id

    def address(self, delta: TokenDelta) -> tuple[Outlet, TokenDelta] | None:
        """Where the engine's delta goes, under the gateway's id; None when nobody waits for it any more.

        A request is forgotten with the last delta that it can bring.
        """
        live = self._live.get(delta.request_id)
        if live is None:
            return None
        if delta.finish_reason is not None or live.is_prefill_leg:
            live.open_choices -= 1
        if delta.error is not None or live.open_choices == 0:
            self._end(delta.request_id, live)
        return live.outlet, msgspec.structs.replace(delta, request_id=live.request_id)

    def abort(self, outlet: Outlet, request_id: str) -> str | None:
        """The engine's id of what is to be aborted, now forgotten; None if nothing is known of it."""
        engine_id = self._engine_ids[outlet].pop(request_id, None)
        if engine_id is not None:
            del self._live[engine_id]
            return engine_id
        return self._ended_legs.pop((outlet, request_id), None)

    def drop(self, outlet: Outlet) -> list[str]:
        """The engine's ids of all that this gateway has asked for, now forgotten."""
        legs = [request_id for owner, request_id in self._ended_legs if owner is outlet]
        engine_ids = [*self._engine_ids.pop(outlet, {}).values()]
        for engine_id in engine_ids:
            del self._live[engine_id]
        return engine_ids + [self._ended_legs.pop((outlet, request_id)) for request_id in legs]

    def _end(self, engine_id: str, live: LiveRequest) -> None:
        del self._live[engine_id], self._engine_ids[live.outlet][live.request_id]
        if live.is_prefill_leg:
            self._ended_legs[live.outlet, live.request_id] = engine_id
            if len(self._ended_legs) > MAX_ENDED_LEGS:
                self._ended_legs.popitem(last=False)
