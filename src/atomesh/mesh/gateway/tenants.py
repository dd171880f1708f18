"""The tenants that this gateway serves, and whose key is whose. Keys are known by their digests alone."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from atomesh.clock import Clock
from atomesh.errors import AuthenticationError
from atomesh.mesh.admission.rate_limits import RateLimits
from atomesh.mesh.admission.tenant import ANONYMOUS, Tenant


@dataclass(frozen=True, slots=True)
class KeyedTenant:
    """`key_digests` are the SHA-256 of each of its keys."""

    tenant: Tenant
    key_digests: tuple[bytes, ...]


@dataclass(slots=True)
class Seat:
    """A tenant as it is set up now, and what it has used of its limits."""

    tenant: Tenant
    limits: RateLimits


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def tenants_of_keys(keys: Iterable[str], secret: bytes) -> tuple[KeyedTenant, ...]:
    """A tenant for each key that came without one.

    Its name says nothing of the key to whoever lacks `secret`, and is the same at every gateway of a cluster.
    """
    name_key = digest_of(b"atomesh tenant name\0" + secret)
    return tuple(
        KeyedTenant(
            Tenant("key-" + hashlib.blake2b(key.encode(), digest_size=6, key=name_key).hexdigest()),
            (digest_of(key.encode()),),
        )
        for key in keys
    )


class TenantDirectory:
    """Of the `own` tenants, and those of a file, which may change.

    With `needs_key` False everybody is the same anonymous tenant.
    """

    def __init__(self, own: Iterable[KeyedTenant], clock: Clock, *, needs_key: bool) -> None:
        self.needs_key = needs_key
        self._own = tuple(own)
        self._clock = clock
        self._blind = secrets.token_bytes(32)
        self._seats: dict[str, Seat] = {}
        self._seat_by_digest: dict[bytes, Seat] = {}
        self._anonymous = Seat(ANONYMOUS, RateLimits(ANONYMOUS, clock.now()))
        self.adopt(())

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values() if self.needs_key else (self._anonymous,))

    @property
    def are_several(self) -> bool:
        return len(self._seats) > 1

    def adopt(self, from_file: Iterable[KeyedTenant]) -> None:
        """What the file says now. A key that is in it is that tenant's alone.

        Who stays keeps what it has used; who has gone gets nothing new, and what it has running goes on.
        """
        now, seats, by_digest = self._clock.now(), dict[str, Seat](), dict[bytes, Seat]()
        for keyed in (*self._own, *from_file):
            seat = seats[keyed.tenant.name] = self._seat(keyed.tenant, now)
            by_digest |= {self._blinded(digest): seat for digest in keyed.key_digests}
        used = {seat.tenant.name for seat in by_digest.values()}
        self._seats = {name: seat for name, seat in seats.items() if name in used}
        self._seat_by_digest = by_digest

    def seat_of(self, key: bytes | None) -> Seat:
        """The tenant whose key it is. Raises AuthenticationError.

        The time it takes says nothing of any key: it is looked up by a digest under a key of this process's
        own, of which nobody outside can choose a single bit.
        """
        if not self.needs_key:
            return self._anonymous
        if key is None:
            raise AuthenticationError("no API key was given; send it as `Authorization: Bearer KEY`")
        seat = self._seat_by_digest.get(self._blinded(digest_of(key)))
        if seat is None:
            raise AuthenticationError("the API key is not valid; check it, or ask the operator for one")
        return seat

    def _seat(self, tenant: Tenant, now: float) -> Seat:
        seat = self._seats.get(tenant.name)
        if seat is None:
            return Seat(tenant, RateLimits(tenant, now))
        if seat.tenant != tenant:
            seat.tenant = tenant
            seat.limits.adopt(tenant, now)
        return seat

    def _blinded(self, digest: bytes) -> bytes:
        return hmac.digest(self._blind, digest, "sha256")


def sharing_prefixes(tenants: Iterable[KeyedTenant]) -> tuple[KeyedTenant, ...]:
    """The same tenants, whose cached prefixes are everybody's."""
    return tuple(replace(one, tenant=replace(one.tenant, has_own_prefixes=False)) for one in tenants)
