"""Who observes the gateway's requests: a line for each in the log, traces, both or neither."""

from dataclasses import dataclass

from starlette.types import ASGIApp

from atomesh.clock import Clock
from atomesh.mesh.dispatch.leg_log import LegLog
from atomesh.mesh.dispatch.leg_spans import TracedDecider, leg_spans
from atomesh.mesh.dispatch.observation import NOTHING_OBSERVED, Observation
from atomesh.observability.observed_requests import ObservedRequests, RequestObserver
from atomesh.observability.request_log import log_requests
from atomesh.observability.request_spans import RequestSpans
from atomesh.observability.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Observability:
    logs_requests: bool = False
    tracing: Tracing | None = None

    def around(self, app: ASGIApp, clock: Clock) -> ASGIApp:
        """`app` itself when nobody observes."""
        observers: list[RequestObserver] = []
        if self.logs_requests:
            observers.append(log_requests())
        if self.tracing is not None:
            observers.append(RequestSpans(self.tracing))
        return ObservedRequests(app, clock, observers) if observers else app

    def close(self) -> None:
        """Send what of the traces has not been sent yet; waits for it, a few seconds at most."""
        if self.tracing is not None:
            self.tracing.close()

    def of_dispatch(self) -> Observation:
        tracing = self.tracing
        watchers = (LegLog,) if self.logs_requests else ()
        if tracing is None:
            return Observation(watchers) if watchers else NOTHING_OBSERVED
        return Observation((*watchers, leg_spans(tracing)), lambda decider: TracedDecider(decider, tracing))
