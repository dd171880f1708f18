"""What a decision expects to happen, whichever policy made it: by the same costs that are measured."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.explanation import Predicted
from atomesh.mesh.placement.pricing import Option
from atomesh.mesh.placement.scorers.compute import compute
from atomesh.mesh.placement.scorers.fetch import fetch
from atomesh.mesh.placement.scorers.hand_off import hand_off
from atomesh.mesh.placement.scorers.queue import queue


def predict(option: Option, case: Case) -> Predicted:
    seat = option.prefill
    return Predicted(
        cached_tokens=seat.ready_tokens,
        ttft_s=queue(seat, case) + fetch(seat, case) + compute(seat, case),
        transfer_s=0.0 if option.decode is None else hand_off(seat, option.decode, case),
        fetch_s=None if seat.fetch_from is None else seat.fetch_s,
    )
