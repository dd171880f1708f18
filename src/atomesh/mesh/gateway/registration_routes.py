"""Where workers make themselves known, and say that they leave: with proof of the secret."""

import asyncio
import hmac
import logging
import secrets
from collections import Counter
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from atomesh.clock import Clock
from atomesh.errors import (
    ConfigurationError,
    InvalidRequestError,
    PermissionDeniedError,
    ServiceUnavailableError,
)
from atomesh.mesh.backends.pool import BackendPool
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.gateway.admin_requests import read_json
from atomesh.protocol.registration import LEASE_S, NONCE_TTL_S, PATH, Offer, Registration, is_genuine

_log = logging.getLogger(__name__)

MAX_REGISTERED = 4096
LOOK_S = 1.0
WRONG_PROOF, OLD_NONCE = "registration_secret", "registration_nonce"


@dataclass(frozen=True, slots=True)
class _Entry:
    incarnation: str
    renewed_at: float


class RegistrationRoutes:
    """Only workers that came this way are let go this way; the operator's word goes before theirs."""

    def __init__(
        self,
        secret: bytes,
        workers: BackendPool,
        registry: WorkerRegistry,
        clock: Clock,
        refusals: Counter[str],
    ) -> None:
        """`refusals` counts those who could not prove that they know the secret, or not lately."""
        self._refusals = refusals
        self._secret = secret
        self._workers = workers
        self._registry = registry
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._entries: dict[str, _Entry] = {}

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self._offer, methods=["GET"]),
            Route(PATH, self._take, methods=["POST"]),
        ]

    async def run(self) -> None:
        """Let go of those whose lease is over, until cancelled."""
        while True:
            self._forget_old()
            await asyncio.sleep(LOOK_S)

    async def _offer(self, _request: Request) -> Response:
        return _json(Offer(self._nonce(f"{self._clock.now():.3f}")))

    async def _take(self, request: Request) -> Response:
        given = await read_json(request, Registration)
        self._check(given)
        self._forget_old()
        if given.kind == "register":
            return _json({"status": self._register(given)})
        return _json({"status": self._leave(given)})

    def _check(self, given: Registration) -> None:
        """Raises PermissionDeniedError unless a holder of the secret has just said this."""
        issued, _, _ = given.nonce.partition("-")
        is_ours = hmac.compare_digest(self._nonce(issued).encode(), given.nonce.encode())
        if not (is_genuine(self._secret, given) and is_ours):
            self._refusals[WRONG_PROOF] += 1
            raise PermissionDeniedError("the proof is wrong: do worker and gateway have the same secret?")
        if self._clock.now() - float(issued) > NONCE_TTL_S:
            self._refusals[OLD_NONCE] += 1
            raise PermissionDeniedError(f"the nonce is older than {NONCE_TTL_S:g} s; ask for another")

    def _register(self, given: Registration) -> str:
        known = self._entries.get(given.address)
        is_renewal = known is not None and known.incarnation == given.incarnation
        if known is None and len(self._entries) >= MAX_REGISTERED:
            raise ServiceUnavailableError(f"{MAX_REGISTERED} workers have registered; there can be no more")
        if is_renewal and given.address not in self._workers:
            return "removed"  # by the operator, and not to come back before it is another
        if known is None and given.address in self._workers:
            return "known"  # the operator has named it
        try:
            self._workers.add(given.address)
        except ConfigurationError as error:
            raise InvalidRequestError(error.message, param="address") from None
        if not is_renewal:
            _log.info("a worker has registered at %s", given.address)
        self._entries[given.address] = _Entry(given.incarnation, self._clock.now())
        return "registered"

    def _leave(self, given: Registration) -> str:
        known = self._entries.get(given.address)
        if known is None or known.incarnation != given.incarnation:
            return "unknown"
        del self._entries[given.address]
        if given.address in self._workers:
            self._workers.drain(given.address)
        return "leaving"

    def _forget_old(self) -> None:
        """Those that are lost, and have not said for long that they are there."""
        now = self._clock.now()
        old = [address for address, entry in self._entries.items() if now - entry.renewed_at > LEASE_S]
        states = {worker.address: worker.state for worker in self._registry.snapshot().workers} if old else {}
        for address in old:
            if states.get(address) in (None, "lost", "connecting"):
                _log.warning("the worker at %s is lost, and silent for %g s: forgotten", address, LEASE_S)
                del self._entries[address]
                self._workers.remove(address)

    def _nonce(self, issued: str) -> str:
        return f"{issued}-{hmac.new(self._key, issued.encode(), 'sha256').hexdigest()}"


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
