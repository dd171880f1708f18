"""The decision: which worker, or which pair, serves a request, and why.

    candidates ── seats ──▶ nominated by the policies, for prefill and for decode ──▶ options ──▶ least sum

A sum is in seconds: the prefill worker's terms and the decode worker's, each divided by the worker's weight
for that role, and the pair's. Ties go to those who were given the fewest requests so far.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atomesh.mesh.cluster.snapshot import WorkerSnapshot, can_hand_off
from atomesh.mesh.placement.case import Case, make_case
from atomesh.mesh.placement.explanation import Candidate, Decision, Explanation, Predicted, Rejection
from atomesh.mesh.placement.inputs import PlacementInputs
from atomesh.mesh.placement.placement import Placement, PrefillDecode, Unified, candidates, options
from atomesh.mesh.placement.policies.policy import Policy
from atomesh.mesh.placement.policies.registry import PolicySet
from atomesh.mesh.placement.scorers.registry import load_scorers
from atomesh.mesh.placement.seats import Seat, take_seat

Terms = dict[str, float]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to serve the request; `decode` is None where one worker does it all."""

    prefill: Seat
    decode: Seat | None
    terms: Terms
    total_s: float
    is_fallback: bool = False

    @property
    def order(self) -> tuple[float, int]:
        dispatched = self.prefill.worker.dispatched
        return self.total_s, dispatched + (0 if self.decode is None else self.decode.worker.dispatched)


def place(inputs: PlacementInputs, policies: PolicySet) -> Decision:
    """Raises ServiceUnavailableError when there is none, InvalidRequestError for an unknown policy."""
    wanted = inputs.request.policy
    prefill, decode = policies.get(wanted, "prefill"), policies.get(wanted, "decode")
    workers = candidates(inputs.model, inputs.cluster, inputs.now, inputs.excluded)
    seats = [take_seat(worker, inputs) for worker in workers]
    case = make_case(inputs, [seat for seat in seats if seat.worker.weights.prefill])
    found = Pricing(case, prefill, decode).options(seats)
    found.sort(key=lambda option: option.order)
    names = {policies.name(wanted, "prefill"): None, policies.name(wanted, "decode"): None}
    return _decide(case, found, "+".join(names), _rejected(inputs, workers))


class Pricing:
    """The sums of one decision; each worker's terms are computed once, however many pairs it is in."""

    def __init__(self, case: Case, prefill: Policy, decode: Policy) -> None:
        self._case = case
        self._prefill, self._decode = prefill, decode
        self._for_prefill, self._for_decode = load_scorers(prefill.scorers), load_scorers(decode.scorers)
        self._prefill_terms: dict[Seat, Terms] = {}
        self._decode_terms: dict[Seat, Terms] = {}

    def options(self, seats: Sequence[Seat]) -> list[Option]:
        """Every way that the roles allow among the nominees; if there is none, those that they do not.

        Never empty. Raises ServiceUnavailableError.
        """
        prefills = [seat for seat in seats if seat.worker.weights.prefill]
        decodes = [seat for seat in seats if seat.worker.weights.decode]
        if prefills and decodes:
            first = self._prefill.nominate(prefills, self._case)
            second = self._decode.nominate(decodes, self._case)
            if nominated := list(self._among(first, second)):
                return nominated
        by_address = {seat.worker.address: seat for seat in seats}
        allowed = options([seat.worker for seat in seats], self._case.inputs.rules)
        return [self._price_placement(placement, by_address) for placement in allowed]

    def _among(self, prefills: Sequence[Seat], decodes: Sequence[Seat]) -> Iterator[Option]:
        may_be_whole = not self._case.inputs.rules.require_disaggregation
        for prefill in prefills:
            is_whole = may_be_whole and bool(prefill.worker.weights.decode)
            if is_whole:
                yield self._whole(prefill)
            if is_whole and self._prefill.stays_whole:
                continue
            for decode in decodes:
                if can_hand_off(prefill.worker, decode.worker):
                    yield self._pair(prefill, decode)

    def _price_placement(self, placement: Placement, seats: dict[str, Seat]) -> Option:
        match placement:
            case PrefillDecode(prefill, decode):
                return self._pair(seats[prefill.address], seats[decode.address])
            case Unified(worker, is_fallback):
                return self._whole(seats[worker.address], is_fallback)

    def _whole(self, seat: Seat, is_fallback: bool = False) -> Option:
        terms = self._of_prefill(seat) | self._of_decode(seat)
        return Option(seat, None, terms, sum(terms.values()), is_fallback)

    def _pair(self, prefill: Seat, decode: Seat) -> Option:
        terms = self._of_prefill(prefill) | self._of_decode(decode)
        for name, scorer in self._for_prefill.pair:
            terms[name] = scorer(prefill, decode, self._case)
        return Option(prefill, decode, terms, sum(terms.values()))

    def _of_prefill(self, seat: Seat) -> Terms:
        terms = self._prefill_terms.get(seat)
        if terms is None:
            weight = seat.worker.weights.prefill or 1.0
            terms = {name: scorer(seat, self._case) / weight for name, scorer in self._for_prefill.prefill}
            self._prefill_terms[seat] = terms
        return terms

    def _of_decode(self, seat: Seat) -> Terms:
        terms = self._decode_terms.get(seat)
        if terms is None:
            weight = seat.worker.weights.decode or 1.0
            terms = {name: scorer(seat, self._case) / weight for name, scorer in self._for_decode.decode}
            self._decode_terms[seat] = terms
        return terms


def _decide(case: Case, found: Sequence[Option], policy: str, rejected: tuple[Rejection, ...]) -> Decision:
    best = found[0]
    shown = tuple(_candidate(option) for option in found)
    explanation = Explanation(
        policy=policy,
        chosen=shown[0],
        candidates=shown,
        rejected=rejected,
        predicted=Predicted(best.prefill.ready_tokens, best.total_s, 0.0),
        parameters={"waste_price": case.waste_price},
    )
    return Decision(_placement(best), explanation)


def _placement(option: Option) -> Placement:
    seat = option.prefill
    if option.decode is None:
        return Unified(seat.worker, option.is_fallback, seat.ready_tokens, seat.fetch_from)
    return PrefillDecode(seat.worker, option.decode.worker, seat.ready_tokens, seat.fetch_from)


def _candidate(option: Option) -> Candidate:
    seat = option.prefill
    return Candidate(
        prefill=_id(seat.worker),
        decode=None if option.decode is None else _id(option.decode.worker),
        terms=option.terms,
        total_s=option.total_s,
        cached_tokens=seat.ready_tokens,
        fetch_from=None if seat.fetch_from is None else _id(seat.fetch_from),
    )


def _rejected(inputs: PlacementInputs, workers: Sequence[WorkerSnapshot]) -> tuple[Rejection, ...]:
    taken = {worker.address for worker in workers}
    return tuple(
        Rejection(_id(worker), _reason(worker, inputs))
        for worker in inputs.cluster.workers
        if worker.address not in taken and worker.model_name in (inputs.model, None)
    )


def _reason(worker: WorkerSnapshot, inputs: PlacementInputs) -> str:
    if worker.state != "ready":
        return worker.state
    if worker.incarnation in inputs.excluded:
        return "has failed this request"
    if not (worker.weights.prefill or worker.weights.decode):
        return "parked: both weights are 0"
    return f"silent for {inputs.now - worker.heard_at:.1f} s"


def _id(worker: WorkerSnapshot) -> str:
    return worker.address if worker.description is None else worker.description.worker_id
