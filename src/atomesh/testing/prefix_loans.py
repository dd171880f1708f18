"""Fetches between the two engines of a SimulatedPair, in either direction."""

from msgspec.structs import replace

from atomesh.protocol.generation import GenerationRequest, PrefixFetch
from atomesh.protocol.ticket import Ticket, sign
from atomesh.testing.scripted_engine import SECRET, ScriptedEngine
from atomesh.testing.simulated_pair import DECODE, PREFILL, SimulatedPair

PATIENCE_S = 5.0
SERIALS = 500_000  # above those of the pair's own tickets


def warm(worker: ScriptedEngine, request: GenerationRequest) -> None:
    """Have the worker compute the prompt, and keep it in its prefix cache."""
    worker.engine.add(replace(request, request_id=f"{request.request_id} of before"))
    worker.run()


def fetch_from_prefill(
    pair: SimulatedPair, request: GenerationRequest, num_tokens: int, ticket: Ticket | None = None
) -> GenerationRequest:
    """The request as placement sends it to the decode worker; without a `ticket`, with a good one."""
    good = pair.ticket(request.request_id, SERIALS + len(pair.decode.answers.first))
    return _with_fetch(request, num_tokens, PREFILL, ticket or good)


def fetch_from_decode(pair: SimulatedPair, request: GenerationRequest, num_tokens: int) -> GenerationRequest:
    """The request as placement sends it to the prefill worker."""
    other_way = pair.ticket(request.request_id, SERIALS + len(pair.requests))
    ticket = sign(SECRET, replace(other_way, prefill=other_way.decode, decode=other_way.prefill))
    return _with_fetch(request, num_tokens, DECODE, ticket)


def ask(pair: SimulatedPair, request: GenerationRequest, num_tokens: int) -> None:
    """The request is at the decode worker, and has asked for its prefix."""
    pair.decode.engine.add(fetch_from_prefill(pair, request, num_tokens))
    pair.step(pair.decode)


def _with_fetch(
    request: GenerationRequest, num_tokens: int, address: str, ticket: Ticket
) -> GenerationRequest:
    fetch = PrefixFetch(ticket=ticket, address=address, num_tokens=num_tokens, patience_s=PATIENCE_S)
    return replace(request, fetch=fetch)
