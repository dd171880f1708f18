"""Who belongs to the mesh, by whoever says so: command line, admin, a file, DNS, the workers themselves.

An address is a member as long as one source names it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_MEMBERS = 4096


@dataclass(frozen=True, slots=True)
class Change:
    """Addresses that have become members, and those that are none any more; each in its order of naming."""

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Membership:
    """Pure; whoever calls it carries out the changes."""

    def __init__(self) -> None:
        self._by_source: dict[str, dict[str, None]] = {}

    def replace(self, source: str, addresses: Iterable[str]) -> Change:
        """These and no others are what `source` names from now on; more than MAX_MEMBERS are left out."""
        before = self._all()
        self._by_source[source] = dict.fromkeys(list(addresses)[:MAX_MEMBERS])
        after = self._all()
        return Change(
            tuple(one for one in after if one not in before), tuple(one for one in before if one not in after)
        )

    def _all(self) -> dict[str, None]:
        return {address: None for named in self._by_source.values() for address in named}
