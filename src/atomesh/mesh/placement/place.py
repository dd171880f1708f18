"""The decision: which worker, or which pair, serves a request, and why.

    candidates ── seats ──▶ nominated by the policies, for prefill and for decode ──▶ options ──▶ least sum

A sum is in seconds: the prefill worker's terms and the decode worker's, each divided by the worker's weight
for that role, and the pair's. Ties go to those who were given the fewest requests so far.
"""

from collections.abc import Sequence
from functools import partial

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.case import Case, make_case
from atomesh.mesh.placement.explanation import MAX_SHOWN, Decision, Explanation, PassedOver, worker_id
from atomesh.mesh.placement.inputs import PlacementInputs
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
from atomesh.mesh.placement.seats import Seat, take_seat


def place(inputs: PlacementInputs, policies: PolicySet) -> Decision:
    """Over the candidates that are not silent.

    Raises ServiceUnavailableError when there is none, InvalidRequestError for an unknown policy.
    """
    found = candidates(inputs.model, inputs.cluster, inputs.now, inputs.excluded)
    return place_among(found.fresh, inputs, policies)


def place_among(workers: Sequence[WorkerSnapshot], inputs: PlacementInputs, policies: PolicySet) -> Decision:
    """As `place`, over these of the candidates."""
    seats = [take_seat(worker, inputs) for worker in workers]
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
    request = case.request
    return Explanation(
        policy=policies.label(request.policy),
        options=found.options[:MAX_SHOWN],
        passed_over=_passed_over(case.inputs, seats, found),
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
        return Unified(seat.worker, option.is_fallback, seat.ready_tokens, seat.fetch_from, seat.patience_s)
    return PrefillDecode(
        seat.worker, option.decode.worker, seat.ready_tokens, seat.fetch_from, seat.patience_s
    )


def _passed_over(inputs: PlacementInputs, seats: Sequence[Seat], found: Found) -> PassedOver:
    """By their names: what is kept of a decision shall not be all that was known of every worker."""
    hidden = [
        seat for option in found.options[MAX_SHOWN:] for seat in (option.prefill, option.decode) if seat
    ]
    return PassedOver(
        asked=tuple([worker_id(seat.worker) for seat in seats]),
        dearer=frozenset([worker_id(seat.worker) for seat in found.passed_over]),
        hidden=frozenset([worker_id(seat.worker) for seat in hidden]),
        barred=_barred(inputs, seats),
        excluded=inputs.excluded,
        now=inputs.now,
    )


def _barred(inputs: PlacementInputs, seats: Sequence[Seat]) -> tuple[WorkerSnapshot, ...]:
    """Workers of the model, or of none yet, that were no candidates."""
    if len(seats) == len(inputs.cluster.workers):
        return ()
    asked = {seat.worker.address for seat in seats}
    return tuple(
        worker
        for worker in inputs.cluster.workers
        if worker.address not in asked and worker.model_name in (inputs.model, None)
    )
