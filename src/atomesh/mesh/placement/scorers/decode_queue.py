"""Prompts that the decode worker has yet to compute: its answers, this one too, stand still for them."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def decode_queue(_prefill: Seat, decode: Seat, _case: Case) -> float:
    return decode.queued_s
