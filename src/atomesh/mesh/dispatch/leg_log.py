"""Lines about legs that failed, for whoever logs requests: which attempt, at whose worker, in which life."""

import logging
from collections.abc import Sequence

from atomesh.errors import AtomeshError
from atomesh.mesh.dispatch.watch import SentLeg
from atomesh.observability.request_log import REQUEST_LOGGER
from atomesh.protocol.generation import TokenDelta

_log = logging.getLogger(f"{REQUEST_LOGGER}.legs")


class LegLog:
    """Implements `watch.LegFollower`."""

    def __init__(self, leg: SentLeg) -> None:
        self._leg = leg

    def began(self, deltas: Sequence[TokenDelta]) -> None:
        """That is as it should be."""

    def over(self, *, is_aborted: bool) -> None:
        """That, too: the request's own line says how it ended."""

    def failed(self, error: AtomeshError) -> None:
        leg = self._leg
        _log.info(
            "a leg failed",
            extra={
                "attempt_id": leg.attempt_id,
                "leg": leg.kind,
                "worker": leg.worker_id,
                "incarnation": leg.incarnation,
                "error_type": type(error).__name__,
            },
        )
