"""Who may write what under which grant: the receiver's book, asked before any byte lands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class GrantRefusal(Exception):
    """`damages`: whoever holds the grant has overstepped it, so that nothing under it can be trusted."""

    def __init__(self, reason: str, *, damages: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.damages = damages


@dataclass(slots=True)
class _Admission:
    peer: str
    targets: Mapping[int, int]
    claimed: set[int] = field(default_factory=set)
    is_void: bool = False


class Grants:
    """Each index of a grant is written once, by the one peer that was admitted."""

    def __init__(self) -> None:
        self._admissions: dict[bytes, _Admission] = {}

    def admit(self, peer: str, grant: bytes, targets: Mapping[int, int]) -> None:
        self._admissions[grant] = _Admission(peer, dict(targets))

    def claim(self, peer: str, grant: bytes, indices: Sequence[int]) -> list[int]:
        """Our block for each of `indices`, theirs to fill from now on. Raises GrantRefusal."""
        admission = self._admissions.get(grant)
        if admission is None or admission.is_void:
            raise GrantRefusal("the grant is not known, or no longer")
        if admission.peer != peer:
            raise GrantRefusal("the grant is another peer's")
        wanted = set(indices)
        if len(wanted) != len(indices) or not wanted <= admission.targets.keys():
            raise GrantRefusal("a block was not granted, or is named twice", damages=True)
        if wanted & admission.claimed:
            raise GrantRefusal("a block has come already")
        admission.claimed |= wanted
        return [admission.targets[index] for index in indices]

    def give_back(self, grant: bytes, indices: Sequence[int]) -> None:
        """What was claimed has not come, and may come again."""
        admission = self._admissions.get(grant)
        if admission is not None:
            admission.claimed.difference_update(indices)

    def void(self, grant: bytes) -> None:
        """Nothing more comes under it; it is still known, until it is cancelled."""
        admission = self._admissions.get(grant)
        if admission is not None:
            admission.is_void = True

    def cancel(self, grant: bytes) -> None:
        self._admissions.pop(grant, None)

    def drop_peer(self, peer: str) -> None:
        gone = [grant for grant, admission in self._admissions.items() if admission.peer == peer]
        for grant in gone:
            del self._admissions[grant]
