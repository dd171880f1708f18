"""The decision: which worker, or which pair, serves a request, and why.

    candidates ── seats ──▶ nominated by the policies, for prefill and for decode ──▶ options ──▶ least sum

A sum is in seconds: the prefill worker's terms and the decode worker's, each divided by the worker's weight
for that role, and the pair's. Ties go to those who were given the fewest requests so far.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.case import Case, make_case
from atomesh.mesh.placement.explanation import Candidate, Decision, Explanation, Rejection
from atomesh.mesh.placement.inputs import STAGES, PlacementInputs
from atomesh.mesh.placement.placement import (
    Placement,
    PrefillDecode,
    Rest,
    Unified,
    candidates,
    rest_options,
)
from atomesh.mesh.placement.policies.registry import PolicySet
from atomesh.mesh.placement.prediction import predict
from atomesh.mesh.placement.pricing import Found, Option, Pricing
from atomesh.mesh.placement.seats import Seat, take_seat, with_fetches


def place(inputs: PlacementInputs, policies: PolicySet) -> Decision:
    """Over the candidates that are not silent.

    Raises ServiceUnavailableError when there is none, InvalidRequestError for an unknown policy.
    """
    found = candidates(inputs.model, inputs.cluster, inputs.now, inputs.excluded)
    return place_among(found.fresh, inputs, policies)


def place_among(workers: Sequence[WorkerSnapshot], inputs: PlacementInputs, policies: PolicySet) -> Decision:
    """As `place`, over these of the candidates."""
    seats = with_fetches([take_seat(worker, inputs) for worker in workers], inputs)
    case = make_case(inputs, [seat for seat in seats if seat.worker.weights.prefill])
    case = policies.get(inputs.request.policy, "prefill").study(case)
    found = _pricing(case, policies).find(seats)
    return _decide(case, seats, found, policies)


def place_rest_among(
    rest: Rest, workers: Sequence[WorkerSnapshot], inputs: PlacementInputs, policies: PolicySet
) -> Decision:
    """Who goes on with an answer, of all who may: the least sum. The request's facts are those of the rest.

    Raises ServiceUnavailableError when there is nobody.
    """
    allowed = rest_options(rest, workers, inputs.rules)
    seats = [take_seat(worker, inputs) for worker in workers]
    case = make_case(inputs, seats)
    return _decide(case, seats, _pricing(case, policies).price(allowed, seats), policies)


def _pricing(case: Case, policies: PolicySet) -> Pricing:
    wanted = case.request.policy
    return Pricing(case, policies.get(wanted, "prefill"), policies.get(wanted, "decode"))


def _decide(case: Case, seats: Sequence[Seat], found: Found, policies: PolicySet) -> Decision:
    return Decision(_placement(found.options[0]), partial(_explain, case, seats, found, policies))


def _explain(case: Case, seats: Sequence[Seat], found: Found, policies: PolicySet) -> Explanation:
    request, shown = case.request, tuple(map(_candidate, found.options))
    names = dict.fromkeys(policies.name(request.policy, stage) for stage in STAGES)
    return Explanation(
        policy="+".join(names),
        chosen=shown[0],
        candidates=shown,
        rejected=tuple(_rejected(case.inputs, seats, found)),
        predicted=predict(found.options[0], case),
        parameters={
            "waste_price": case.waste_price,
            "best_cached_tokens": case.best_cached,
            "popularity": case.popularity,
            "prompt_tokens": request.num_prompt_tokens,
            "expected_output_tokens": request.output_tokens,
        },
    )


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


def _rejected(inputs: PlacementInputs, seats: Sequence[Seat], found: Found) -> Iterator[Rejection]:
    candidates_ = _addresses(seat.worker for seat in seats)
    for worker in inputs.cluster.workers:
        if worker.address not in candidates_ and worker.model_name in (inputs.model, None):
            yield Rejection(_id(worker), _why_no_candidate(worker, inputs))
    shown = _addresses(
        seat.worker for option in found.options for seat in (option.prefill, option.decode) if seat
    )
    dearer = _addresses(seat.worker for seat in found.passed_over)
    for seat in seats:
        if seat.worker.address not in shown:
            is_dearer = seat.worker.address in dearer
            reason = "others were cheaper for its role" if is_dearer else "not nominated by the policy"
            yield Rejection(_id(seat.worker), reason)


def _addresses(workers: Iterable[WorkerSnapshot]) -> set[str]:
    return {worker.address for worker in workers}


def _why_no_candidate(worker: WorkerSnapshot, inputs: PlacementInputs) -> str:
    if worker.state != "ready":
        return worker.state
    if worker.incarnation in inputs.excluded:
        return "has failed this request"
    if not (worker.weights.prefill or worker.weights.decode):
        return "parked: both weights are 0"
    if not worker.breaker.lets_through(inputs.now):
        return worker.breaker.why_not(inputs.now)
    return f"silent for {inputs.now - worker.heard_at:.1f} s"


def _id(worker: WorkerSnapshot) -> str:
    return worker.address if worker.description is None else worker.description.worker_id
