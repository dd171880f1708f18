import pytest

from atomesh.engine import live_requests
from atomesh.engine.live_requests import LiveRequests
from atomesh.errors import AtomeshError
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, PrefillLeg, TokenDelta, WireError
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.ticket import Ticket


class Gateway:
    def send(self, body: bytes, *, is_news: bool = True) -> None: ...


def prefill_leg() -> PrefillLeg:
    ticket = Ticket(
        ticket_id=b"t" * 16, gateway="g", serial=1, request_id="r", prefill="p", decode="d", ttl_s=30.0
    )
    return PrefillLeg(ticket=ticket, decode_address="unix:/d")


def admit(live: LiveRequests, gateway: Gateway, request_id: str, n: int = 1, leg: Leg | None = None) -> str:
    request = GenerationRequest(
        request_id=request_id, prompt_token_ids=[1], sampling=SamplingSpec(seed=0, max_tokens=4), n=n
    )
    engine_id = live.next_engine_id(gateway, request_id)
    live.admit(engine_id, gateway, request, leg)
    return engine_id


def token(engine_id: str, choice: int = 0, *, ends: bool = False) -> TokenDelta:
    return TokenDelta(
        request_id=engine_id, choice=choice, token_ids=[5], finish_reason="length" if ends else None
    )


def test_two_gateways_may_use_one_word_and_each_gets_its_own() -> None:
    live, ours, theirs = LiveRequests(), Gateway(), Gateway()
    first, second = admit(live, ours, "r"), admit(live, theirs, "r")
    assert first != second
    assert live.address(token(first)) == (ours, token("r"))
    assert live.address(token(second)) == (theirs, token("r"))


def test_a_word_is_taken_until_its_request_has_ended() -> None:
    live, gateway = LiveRequests(), Gateway()
    first = admit(live, gateway, "r")
    with pytest.raises(AtomeshError, match="already in use"):
        live.next_engine_id(gateway, "r")
    live.address(token(first, ends=True))
    assert len(live) == 0
    assert admit(live, gateway, "r") != first
    assert live.address(token(first)) is None


def test_a_request_ends_with_its_last_choice() -> None:
    live, gateway = LiveRequests(), Gateway()
    engine_id = admit(live, gateway, "r", n=2)
    live.address(token(engine_id, 0, ends=True))
    assert live.address(token(engine_id, 1)) is not None
    live.address(token(engine_id, 1, ends=True))
    assert live.address(token(engine_id, 1)) is None


def test_a_decode_leg_has_only_the_choices_that_are_still_open() -> None:
    live, gateway = LiveRequests(), Gateway()
    engine_id = admit(live, gateway, "r", n=3, leg=DecodeLeg(outputs={0: [5], 2: [7]}))
    live.address(token(engine_id, 0, ends=True))
    live.address(token(engine_id, 2, ends=True))
    assert len(live) == 0


def test_an_error_ends_all_choices() -> None:
    live, gateway = LiveRequests(), Gateway()
    engine_id = admit(live, gateway, "r", n=3)
    failed = TokenDelta(request_id=engine_id, finish_reason="error", error=WireError("EngineError", "no"))
    assert live.address(failed) is not None
    assert len(live) == 0


def test_a_prefill_leg_is_over_with_each_choices_first_token_but_can_still_be_aborted() -> None:
    live, gateway = LiveRequests(), Gateway()
    engine_id = admit(live, gateway, "r", n=2, leg=prefill_leg())
    live.address(token(engine_id, 0))
    assert len(live) == 1
    live.address(token(engine_id, 1, ends=True))
    assert len(live) == 0
    assert live.abort(gateway, "r") == engine_id
    assert live.abort(gateway, "r") is None


def test_an_ended_request_has_nothing_to_abort() -> None:
    live, gateway = LiveRequests(), Gateway()
    live.address(token(admit(live, gateway, "r"), ends=True))
    assert live.abort(gateway, "r") is None


def test_a_gateway_that_goes_takes_along_what_is_left_of_its_requests_alone() -> None:
    live, gone, other = LiveRequests(), Gateway(), Gateway()
    running = admit(live, gone, "a")
    over = admit(live, gone, "b", leg=prefill_leg())
    kept = admit(live, other, "b", leg=prefill_leg())
    live.address(token(over))
    live.address(token(kept))
    assert live.drop(gone) == [running, over]
    assert live.drop(gone) == []
    assert len(live) == 0
    assert live.abort(other, "b") == kept


def test_of_ended_legs_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_requests, "MAX_ENDED_LEGS", 2)
    live, gateway = LiveRequests(), Gateway()
    for name in "abc":
        live.address(token(admit(live, gateway, name, leg=prefill_leg())))
    assert [live.abort(gateway, name) for name in "abc"] == [None, "2", "3"]
