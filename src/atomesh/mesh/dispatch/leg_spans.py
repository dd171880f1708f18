"""Spans of what the mesh does for a request: the decision, each leg, and the transfer between two of them."""

from collections.abc import Sequence

from atomesh.errors import AtomeshError
from atomesh.mesh.dispatch.decider import Decider
from atomesh.mesh.dispatch.explanations import Account
from atomesh.mesh.dispatch.watch import LegFollower, LegKind, LegWatcher, SentLeg
from atomesh.mesh.placement.placement import Placement, PrefillDecode
from atomesh.mesh.request_flow.steps import Nowhere, Place, Placed, PlaceRest
from atomesh.observability.tracing import Attribute, Tracing
from atomesh.protocol.generation import GenerationRequest, TokenDelta

_NAMES: dict[LegKind, str] = {"whole": "generate", "prefill": "prefill leg", "decode": "decode leg"}


class TracedDecider:
    """Implements `Decider`: the same decisions, each in a span."""

    def __init__(self, inner: Decider, tracing: Tracing) -> None:
        self._inner = inner
        self._tracing = tracing

    async def find(self, wanted: Place | PlaceRest) -> Placed | Nowhere:
        span = self._tracing.child(
            "placement",
            {"atomesh.is_rest": isinstance(wanted, PlaceRest), "atomesh.excluded": len(wanted.excluded)},
        )
        try:
            found = await self._inner.find(wanted)
            if isinstance(found, Placed):
                span.note(_describe(found.placement))
            else:
                span.fail(found.error.type)
            return found
        finally:
            span.end()

    def bar(self, request: GenerationRequest) -> None:
        self._inner.bar(request)

    def saw(self, account: Account, deltas: Sequence[TokenDelta]) -> None:
        self._inner.saw(account, deltas)

    def ended(self, account: Account) -> None:
        self._inner.ended(account)


def leg_spans(tracing: Tracing) -> LegWatcher:
    def watch(leg: SentLeg) -> LegFollower:
        return LegSpan(leg, tracing)

    return watch


class LegSpan:
    """Implements `watch.LegFollower`."""

    def __init__(self, leg: SentLeg, tracing: Tracing) -> None:
        self._leg = leg
        self._span = tracing.child(
            _NAMES[leg.kind],
            {
                "atomesh.attempt_id": leg.attempt_id,
                "atomesh.worker": leg.worker_id,
                "atomesh.incarnation": leg.incarnation,
            },
            is_call=True,
        )

    def began(self, deltas: Sequence[TokenDelta]) -> None:
        """The engine's own times come with the first tokens; the transfer began with the decode leg."""
        timings = next((delta.timings for delta in deltas if delta.timings is not None), None)
        if timings is None:
            return
        self._span.note(
            {"atomesh.engine.queue_s": timings.queue_s, "atomesh.engine.prefill_s": timings.prefill_s}
        )
        if self._leg.takes_over:
            sources = sorted({delta.kv_source for delta in deltas if delta.kv_source is not None})
            self._span.record_child(
                "transfer", self._span.start_ns, timings.transfer_s, {"atomesh.kv_source": sources}
            )

    def failed(self, error: AtomeshError) -> None:
        self._span.fail(error.type)
        self._span.end()

    def over(self, *, is_aborted: bool) -> None:
        self._span.note({"atomesh.aborted": is_aborted})
        self._span.end()


def _describe(placement: Placement) -> dict[str, Attribute]:
    if isinstance(placement, PrefillDecode):
        workers = {"atomesh.prefill_worker": placement.prefill, "atomesh.decode_worker": placement.decode}
    else:
        workers = {"atomesh.worker": placement.worker}
    named: dict[str, Attribute] = {
        name: worker.description.worker_id
        for name, worker in workers.items()
        if worker.description is not None
    }
    return named | {"atomesh.predicted_cached_tokens": placement.cached_tokens}
