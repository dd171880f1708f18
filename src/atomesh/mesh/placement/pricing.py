"""The sums: every way to serve a request among those nominated, each with its terms in seconds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from atomesh.mesh.cluster.snapshot import can_hand_off
from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.inputs import Way
from atomesh.mesh.placement.placement import Placement, PrefillDecode, Unified, options
from atomesh.mesh.placement.policies.policy import Policy
from atomesh.mesh.placement.scorers.registry import Scorers, load_scorers
from atomesh.mesh.placement.scorers.scorer import SeatScorer
from atomesh.mesh.placement.seats import Seat, with_fetches

PAIRED = 4  # of each step's nominees, how many are tried in every combination


@dataclass(slots=True, eq=False)  # not frozen, for the same reason as a Seat
class Option:
    """One way to serve the request; `decode` is None where one worker does it all.

    Nobody changes it. `seconds` are those of the terms that `names` names.
    """

    prefill: Seat
    decode: Seat | None
    names: Sequence[str]
    seconds: Sequence[float]
    total_s: float
    is_fallback: bool = False

    @property
    def terms(self) -> Mapping[str, float]:
        return dict(zip(self.names, self.seconds, strict=True))

    @property
    def way(self) -> Way:
        return "whole" if self.decode is None else "apart"

    @property
    def order(self) -> tuple[float, int]:
        """Ties go to those who were given the fewest requests so far."""
        dispatched = self.prefill.worker.dispatched
        return self.total_s, dispatched + (0 if self.decode is None else self.decode.worker.dispatched)


@dataclass(slots=True, eq=False)
class Priced:
    """A nominee for one step, with that step's terms, each divided by its weight for the role."""

    seat: Seat
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class Found:
    """The options, the cheapest first, and the nominees that are in none: they were not among PAIRED."""

    options: Sequence[Option]
    passed_over: Sequence[Seat] = field(default=())


class Pricing:
    """Of one decision; a worker's terms are computed once, however many pairs it is in."""

    def __init__(self, case: Case, prefill: Policy, decode: Policy) -> None:
        self._case = case
        self._prefill, self._decode = prefill, decode
        self._scorers = Scorers(
            load_scorers(prefill.scorers).prefill,
            load_scorers(decode.scorers).decode,
            load_scorers(prefill.scorers).pair,
        )
        self._names_whole = _names(self._scorers.prefill) + _names(self._scorers.decode)
        self._names_apart = self._names_whole + _names(self._scorers.pair)
        self._decodes: dict[int, Priced] = {}  # by the seat's id

    def find(self, seats: Sequence[Seat]) -> Found:
        """Every way that the roles allow among the nominees; if there is none, those that they do not.

        Never empty. Raises ServiceUnavailableError.
        """
        prefills = [seat for seat in seats if seat.worker.weights.prefill]
        decodes = [seat for seat in seats if seat.worker.weights.decode]
        inputs = self._case.inputs
        if prefills and decodes:
            nominated = with_fetches(self._prefill.nominate(prefills, self._case), seats, inputs)
            found = self._among(nominated, decodes)
            if found.options:
                return found
        allowed = options([seat.worker for seat in seats], inputs.rules)
        return self.price(allowed, with_fetches(seats, seats, inputs))

    def price(self, placements: Iterable[Placement], seats: Sequence[Seat]) -> Found:
        """These placements, of workers that have seats."""
        by_address = {seat.worker.address: seat for seat in seats}
        return Found(_sorted(self._of(placement, by_address) for placement in placements))

    def _among(self, nominated: Sequence[Seat], decodes: Sequence[Seat]) -> Found:
        first = [self._for_prefill(seat) for seat in nominated]
        whole = [self._whole(one) for one in first if self._may_be_whole(one.seat)]
        can_send = any(one.seat.worker.kv_plane is not None for one in first)
        if (whole and self._prefill.stays_whole) or not can_send:
            return Found(_sorted(whole))
        second = [self._for_decode(seat) for seat in self._decode.nominate(decodes, self._case)]
        apart = list(self._pairs(_cheapest(first), _cheapest(second)))
        found = self._with_hysteresis(whole, apart)
        shown = {id(seat) for option in found for seat in (option.prefill, option.decode)}
        return Found(_sorted(found), [one.seat for one in (*first, *second) if id(one.seat) not in shown])

    def _pairs(self, prefills: Sequence[Priced], decodes: Sequence[Priced]) -> Iterator[Option]:
        for prefill in prefills:
            for decode in decodes:
                if can_hand_off(prefill.seat.worker, decode.seat.worker):
                    yield self._pair(prefill, decode)

    def _of(self, placement: Placement, seats: dict[str, Seat]) -> Option:
        match placement:
            case PrefillDecode(prefill, decode):
                return self._pair(
                    self._for_prefill(seats[prefill.address]), self._for_decode(seats[decode.address])
                )
            case Unified(worker, is_fallback):
                return self._whole(self._for_prefill(seats[worker.address]), is_fallback)

    def _with_hysteresis(self, whole: Sequence[Option], apart: Sequence[Option]) -> list[Option]:
        """Where both ways are open, the one not taken last is that much dearer."""
        last, share = self._case.inputs.last_way, self._case.weights.hysteresis
        found = [*whole, *apart]
        if not (whole and apart) or last is None:
            return found
        return [option if option.way == last else _dearer(option, share) for option in found]

    def _may_be_whole(self, seat: Seat) -> bool:
        return bool(seat.worker.weights.decode) and not self._case.inputs.rules.require_disaggregation

    def _whole(self, one: Priced, is_fallback: bool = False) -> Option:
        seconds = one.seconds + self._for_decode(one.seat).seconds
        return Option(one.seat, None, self._names_whole, seconds, sum(seconds), is_fallback)

    def _pair(self, prefill: Priced, decode: Priced) -> Option:
        own = [scorer(prefill.seat, decode.seat, self._case) for _, scorer in self._scorers.pair]
        seconds = prefill.seconds + decode.seconds + own
        return Option(prefill.seat, decode.seat, self._names_apart, seconds, sum(seconds))

    def _for_prefill(self, seat: Seat) -> Priced:
        return self._price(seat, self._scorers.prefill, seat.worker.weights.prefill or 1.0)

    def _for_decode(self, seat: Seat) -> Priced:
        priced = self._decodes.get(id(seat))
        if priced is None:
            weight = seat.worker.weights.decode or 1.0
            priced = self._decodes[id(seat)] = self._price(seat, self._scorers.decode, weight)
        return priced

    def _price(self, seat: Seat, scorers: Sequence[tuple[str, SeatScorer]], weight: float) -> Priced:
        case = self._case
        return Priced(seat, [scorer(seat, case) / weight for _, scorer in scorers])


def _names(scorers: Iterable[tuple[str, object]]) -> tuple[str, ...]:
    return tuple(name for name, _ in scorers)


def _dearer(option: Option, share: float) -> Option:
    more_s = option.total_s * share
    return Option(
        option.prefill,
        option.decode,
        (*option.names, "hysteresis"),
        [*option.seconds, more_s],
        option.total_s + more_s,
    )


def _cheapest(nominees: Sequence[Priced]) -> Sequence[Priced]:
    def order(one: Priced) -> tuple[float, int]:
        return sum(one.seconds), one.seat.worker.dispatched

    return nsmallest(PAIRED, nominees, key=order)


def _sorted(found: Iterable[Option]) -> list[Option]:
    return sorted(found, key=lambda option: option.order)
