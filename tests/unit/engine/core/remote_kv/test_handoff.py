"""One hand-off after the other, message by message, between two scripted engines."""

from collections import Counter

import pytest

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.errors import InvalidRequestError, ServiceUnavailableError
from atomesh.protocol.generation import DecodeLeg, PrefillLeg
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import ScriptedEngine, scripted_request
from atomesh.testing.simulated_links import Route
from atomesh.testing.simulated_pair import (
    ASK,
    DECODE,
    PREFILL,
    PULL,
    PULL_REPLY,
    REPLY,
    HandedOff,
    SimulatedPair,
    is_idle,
)

BLOCK = 4
SIZES = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 8,
    "max_model_len": 64,
    "block_size": BLOCK,
    "num_blocks": 32,
}


def config(**overrides: object) -> SchedulerConfig:
    return SchedulerConfig(**{**SIZES, **overrides})


@pytest.fixture
def pair() -> SimulatedPair:
    return SimulatedPair(config(), config())


def prompt(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


def submit(pair: SimulatedPair, length: int = 18, name: str = "a", **fields: object) -> HandedOff:
    spec = SamplingSpec(seed=0, max_tokens=6)
    return pair.submit(scripted_request(name, prompt(length), spec, **fields))


def steps(pair: SimulatedPair, worker: ScriptedEngine, number: int) -> None:
    for _ in range(number):
        pair.step(worker)


def advance(pair: SimulatedPair, *routes: Route) -> None:
    for route in routes:
        pair.links.advance(route)


def states(worker: ScriptedEngine) -> dict[str, int]:
    return worker.engine.take_stock().states


def outcomes(worker: ScriptedEngine) -> Counter[str]:
    return worker.scheduler.remote_kv.transfers


def assert_answered(pair: SimulatedPair, handed_off: HandedOff, source: str = "transferred") -> None:
    request = handed_off.request
    for choice in range(request.n):
        assert handed_off.tokens[choice] == pair.prefill.solo_answer(request, choice)
    assert set(handed_off.sources.values()) == {source}


def computed(worker: ScriptedEngine) -> list[tuple[int, int]]:
    """(start, number of tokens) of all that was computed."""
    return [(one.start, len(one.token_ids)) for batch in worker.executor.batches for one in batch.sequences]


def test_blocks_go_while_the_next_chunk_is_computed_and_decode_computes_no_prompt_token(
    pair: SimulatedPair,
) -> None:
    handed_off = submit(pair)
    pair.step(pair.prefill)  # two blocks of five are computed; room has been asked for
    assert pair.links.routes == [ASK]
    advance(pair, ASK)
    assert states(pair.decode)["reserved"] == 5
    advance(pair, REPLY)  # the grant; the two finished blocks go at once
    advance(pair, ASK)
    assert states(pair.decode) == {"free": 27, "cached": 0, "held": 2, "reserved": 3, "quarantined": 0}
    steps(pair, pair.prefill, 2)
    assert handed_off.tokens == {0: pair.prefill.solo_answer(handed_off.request)[:1]}
    assert handed_off.last[0].cached_tokens == 0
    pair.drain(ASK, REPLY)
    assert outcomes(pair.prefill) == {"sent_committed": 1}
    assert is_idle(pair.prefill)
    pair.start_decode(handed_off)
    pair.step(pair.decode)
    assert computed(pair.decode) == [(18, 1)]
    pair.run()
    assert_answered(pair, handed_off)
    assert outcomes(pair.decode) == {"received_committed": 1}


@pytest.mark.parametrize("length", [1, 3, 4, 5, 12, 57])
def test_any_length_of_prompt(pair: SimulatedPair, length: int) -> None:
    handed_off = submit(pair, length)
    pair.run()
    assert_answered(pair, handed_off)
    assert [start for start, _ in computed(pair.decode)] == list(range(length, length + 5))


def test_only_missing_blocks_are_granted_and_moved_kv_is_no_hit(pair: SimulatedPair) -> None:
    first = submit(pair, 18)
    pair.run()
    again = submit(pair, 18, "b")
    pair.step(pair.prefill)
    advance(pair, ASK)
    assert states(pair.decode)["reserved"] == 1  # only the partial block
    pair.run()
    assert_answered(pair, again)
    assert (first.last[0].cached_tokens, again.last[0].cached_tokens) == (None, None)
    assert pair.prefill.answers.first["b"].cached_tokens == 16
    assert pair.decode.answers.first["b"].cached_tokens is None
    assert pair.decode.engine.load().prefix_cache_queries == 0


def test_one_prefill_serves_all_choices_and_they_share_its_blocks(pair: SimulatedPair) -> None:
    """FAULTS.md B3."""
    handed_off = submit(pair, n=3)
    steps(pair, pair.prefill, 3)
    pair.drain(ASK, REPLY)
    pair.start_decode(handed_off)
    pair.step(pair.decode)
    assert states(pair.decode)["held"] == 4 + 3  # the partial block was copied on write
    pair.run()
    assert_answered(pair, handed_off)
    assert pair.prefill.engine.load().prompt_tokens == 18
    assert pair.decode.engine.load().prompt_tokens == 0


def test_an_answer_that_ends_with_its_first_token_never_reaches_decode(pair: SimulatedPair) -> None:
    """FAULTS.md B1."""
    spec = SamplingSpec(seed=0, max_tokens=1)
    handed_off = pair.submit(scripted_request("a", prompt(10), spec))
    pair.run()
    assert handed_off.last[0].finish_reason == "length"
    assert len(handed_off.tokens[0]) == 1
    assert outcomes(pair.prefill) == {"sent_not_needed": 1}
    assert pair.decode.engine.load().steps == 0
    assert not handed_off.is_decode_due


def test_a_choice_that_stops_at_once_is_not_in_the_decode_leg(pair: SimulatedPair) -> None:
    request = scripted_request("a", prompt(10), n=2)
    stop = pair.prefill.solo_answer(request, 1)[0]
    spec = SamplingSpec(seed=0, max_tokens=6, eos_token_ids=(stop,))
    handed_off = pair.submit(scripted_request("a", prompt(10), spec, n=2))
    pair.run()
    assert handed_off.tokens[1] == [stop]
    assert handed_off.last[1].finish_reason == "stop"
    assert handed_off.tokens[0] == pair.prefill.solo_answer(handed_off.request, 0)
    assert handed_off.sources == {0: "transferred"}


def test_prompt_logprobs_come_from_prefill_alone(pair: SimulatedPair) -> None:
    spec = SamplingSpec(seed=0, max_tokens=3, prompt_logprobs=0)
    handed_off = pair.submit(scripted_request("a", prompt(9), spec))
    pair.run()
    first = pair.prefill.answers.first["a"]
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == 9
    assert pair.decode.answers.first["a"].prompt_logprobs is None
    assert_answered(pair, handed_off)


def test_a_full_decode_worker_refuses_and_pulls_when_it_has_room() -> None:
    pair = SimulatedPair(config(), config(num_blocks=16))
    other = scripted_request("other", prompt(46, 500), SamplingSpec(seed=0, max_tokens=10))
    pair.decode.engine.add(other)
    steps(pair, pair.decode, 6)
    handed_off = submit(pair, 18)
    steps(pair, pair.prefill, 3)
    advance(pair, ASK, REPLY)
    assert pair.decode.scheduler.remote_kv.refusals == {"full": 1}
    assert states(pair.prefill)["held"] == 5  # kept for a pull
    pair.start_decode(handed_off)
    while PULL not in pair.links.routes:
        assert pair.decode.engine.has_work()
        pair.step(pair.decode)
    assert not pair.decode.engine.has_work()
    pair.drain(PULL, PULL_REPLY)
    assert outcomes(pair.prefill) == {"sent_committed": 1}
    pair.run()
    assert_answered(pair, handed_off)
    assert pair.decode.answers.tokens["other", 0] == pair.decode.solo_answer(other)


def test_a_decode_leg_that_overtakes_the_offer_pulls_and_the_late_offer_changes_nothing(
    pair: SimulatedPair,
) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    pair.start_decode(handed_off)
    pair.step(pair.decode)
    assert sorted(pair.links.routes) == sorted([PULL, ASK])
    advance(pair, ASK)  # the offer: not answered, the pull has granted already
    assert REPLY not in pair.links.routes
    pair.drain(PULL, PULL_REPLY)
    pair.run()
    assert_answered(pair, handed_off)
    assert outcomes(pair.decode) == {"received_committed": 1}


def test_grants_leave_the_watermark_and_an_older_waiting_request_alone() -> None:
    pair = SimulatedPair(config(), config(num_blocks=16), watermark=0.25)
    for name in "ab":
        submit(pair, 24, name)
    steps(pair, pair.prefill, 1)
    steps(pair, pair.prefill, 5)
    pair.drain(ASK, REPLY)
    assert pair.decode.scheduler.remote_kv.refusals == {}  # 6 + 6 blocks of 12
    submit(pair, 1, "c")
    pair.step(pair.prefill)
    pair.drain(ASK, REPLY)
    assert pair.decode.scheduler.remote_kv.refusals == {"full": 1}


def test_nothing_is_granted_while_an_older_sequence_lacks_room() -> None:
    pair = SimulatedPair(config(), config(num_blocks=16), watermark=0.0)
    submit(pair, 30, "held")
    steps(pair, pair.prefill, 4)
    pair.drain(ASK, REPLY)
    pair.decode.engine.add(scripted_request("big", prompt(40, 500)))
    pair.decode.engine.step()
    small = submit(pair, 3, "small")
    pair.step(pair.prefill)
    pair.drain(ASK, REPLY)
    assert pair.decode.scheduler.remote_kv.refusals == {"full": 1}
    assert small.is_decode_due


@pytest.mark.parametrize(
    ("on_failure", "fault"),
    [("recompute", "lost"), ("recompute", "damaged"), ("fail", "lost"), ("fail", "damaged")],
)
def test_a_transfer_that_fails_is_computed_again_or_is_an_error(
    pair: SimulatedPair, on_failure: str, fault: str
) -> None:
    """FAULTS.md A2, A6."""
    spec = SamplingSpec(seed=0, max_tokens=6)
    handed_off = pair.submit(scripted_request("a", prompt(18), spec), on_failure)
    pair.step(pair.prefill)
    advance(pair, ASK, REPLY, ASK)  # two blocks are there and verified
    steps(pair, pair.prefill, 2)
    pair.links.advance(ASK, fault=fault)
    pair.run()
    counted = {"lost": "received_withdrawn", "damaged": "received_damaged"}[fault]
    assert outcomes(pair.decode) == {counted: 1}
    if on_failure == "fail":
        assert handed_off.error is not None
        assert handed_off.error.error.kind == "EngineError"
        return
    assert_answered(pair, handed_off, "recomputed")
    assert computed(pair.decode)[0][0] == 8  # what was verified was kept


def test_a_claim_waits_for_kv_that_is_under_way_and_says_how_long(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    advance(pair, ASK, REPLY)
    pair.start_decode(handed_off)
    pair.step(pair.decode)
    assert not pair.decode.engine.has_work()
    pair.advance_clock(2.5)
    pair.drain(ASK, REPLY)
    assert pair.decode.engine.has_work()
    pair.run()
    timings = pair.decode.answers.first["a"].timings
    assert timings is not None
    assert (timings.queue_s, timings.transfer_s) == (0.0, 2.5)


def test_what_is_cancelled_is_not_used_before_the_fence(pair: SimulatedPair) -> None:
    """FAULTS.md A3."""
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    advance(pair, ASK, REPLY)
    pair.start_decode(handed_off)
    pair.abort(handed_off)
    assert states(pair.decode) == {"free": 27, "cached": 0, "held": 0, "reserved": 0, "quarantined": 5}
    other = scripted_request("b", prompt(60, 300), SamplingSpec(seed=0, max_tokens=3))
    pair.decode.engine.add(other)
    advance(pair, ASK)  # the push, late
    pair.links.fence()
    assert states(pair.decode)["quarantined"] == 0
    assert pair.decode.run() > 0
    assert pair.decode.answers.tokens["b", 0] == pair.decode.solo_answer(other)


def test_an_abort_after_the_prefill_leg_frees_both_sides_at_once(pair: SimulatedPair) -> None:
    """FAULTS.md C1: no lease is waited for."""
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    advance(pair, ASK, REPLY)
    pair.abort(handed_off)
    pair.drain(ASK, REPLY)
    while pair.links.num_fences:
        pair.links.fence()
    assert is_idle(pair.prefill)
    assert is_idle(pair.decode)
    assert outcomes(pair.prefill) == {"sent_aborted": 1}
    assert outcomes(pair.decode) == {"received_withdrawn": 1}


def test_an_aborted_attempt_is_found_by_its_tickets_name(pair: SimulatedPair) -> None:
    submit(pair)
    steps(pair, pair.prefill, 3)
    advance(pair, ASK)
    for worker in (pair.prefill, pair.decode):
        worker.engine.abort_attempt("another")
        worker.engine.abort_attempt("a")
    pair.links.flush()
    pair.drain(ASK, REPLY)
    pair.links.fence()
    assert is_idle(pair.prefill)
    assert is_idle(pair.decode)


def test_a_late_offer_does_not_revive_an_aborted_ticket(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    pair.start_decode(handed_off)
    pair.decode.engine.abort("a")
    pair.links.flush()
    advance(pair, ASK)
    assert states(pair.decode)["reserved"] == 0
    assert pair.decode.scheduler.remote_kv.refusals == {"ticket_dead": 1}


def test_prefill_that_fails_gives_decodes_blocks_back(pair: SimulatedPair) -> None:
    """FAULTS.md A5."""
    pair.prefill.executor._fails = lambda sequence: sequence.start > 0
    handed_off = submit(pair)
    pair.step(pair.prefill)
    advance(pair, ASK, REPLY)
    pair.step(pair.prefill)
    assert handed_off.error is not None
    pair.drain(ASK, REPLY)
    pair.links.fence()
    assert is_idle(pair.decode)
    assert outcomes(pair.decode) == {"received_withdrawn": 1}


def test_a_grant_without_progress_lapses_and_its_kv_is_pulled_later(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    pair.step(pair.prefill)
    advance(pair, ASK)
    pair.decode.clock.advance(10.0)
    pair.decode.engine.poll()
    pair.links.flush()
    assert states(pair.decode)["quarantined"] == 5
    steps(pair, pair.prefill, 2)
    pair.drain(ASK, REPLY)
    pair.links.fence()
    pair.start_decode(handed_off)
    pair.run()
    assert_answered(pair, handed_off)
    assert outcomes(pair.decode) == {"received_expired": 1, "received_committed": 1}


def test_a_prompt_that_takes_its_time_renews_its_grant(pair: SimulatedPair) -> None:
    submit(pair, 18)
    pair.step(pair.prefill)
    advance(pair, ASK, REPLY)
    pair.drain(ASK, REPLY)
    for _ in range(20):
        pair.advance_clock(4.0)
        pair.drain(ASK, REPLY)
    assert states(pair.decode)["reserved"] == 3
    assert pair.prefill.engine.next_deadline() == pytest.approx(80.0 + 10 / 3)


def test_an_offer_that_nobody_wants_lapses(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    pair.links.cut(ASK)
    assert pair.prefill.engine.next_deadline() == 30.0
    pair.advance_clock(30.0)
    assert is_idle(pair.prefill)
    assert outcomes(pair.prefill) == {"sent_expired": 1}
    pair.run()
    assert_answered(pair, handed_off, "recomputed")


def test_committed_kv_that_nobody_claims_lapses_into_the_prefix_cache(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    pair.drain(ASK, REPLY)
    pair.advance_clock(30.0)
    assert outcomes(pair.decode) == {"received_unclaimed": 1}
    assert states(pair.decode) == {"free": 28, "cached": 4, "held": 0, "reserved": 0, "quarantined": 0}
    pair.run()
    assert_answered(pair, handed_off, "recomputed")
    assert computed(pair.decode)[0] == (16, 3)


def test_a_lost_peer_voids_what_was_under_way_and_a_claim_goes_on_alone(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    advance(pair, ASK, REPLY)
    pair.start_decode(handed_off)
    pair.links.cut(ASK)
    assert states(pair.prefill)["held"] == 5  # kept, but no longer being read
    pair.drain(PULL)  # decode says that it no longer wants it
    assert is_idle(pair.prefill)
    pair.run()
    assert_answered(pair, handed_off, "recomputed")
    assert outcomes(pair.decode) == {"received_peer_lost": 1}


def test_a_connection_lost_before_the_claim_is_made_up_for_by_a_pull(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    advance(pair, ASK, REPLY)
    pair.links.cut(ASK)
    pair.links.fence()
    pair.run()
    assert_answered(pair, handed_off)
    assert outcomes(pair.decode) == {"received_peer_lost": 1, "received_committed": 1}


def test_preempted_before_its_first_token_it_is_computed_here() -> None:
    pair = SimulatedPair(config(), config(num_blocks=8))
    requests = [submit(pair, 13, name) for name in "ab"]
    requests += [pair.submit(scripted_request("c", prompt(11, 99), SamplingSpec(seed=0, max_tokens=20)))]
    pair.run()
    for handed_off in requests:
        for choice, tokens in handed_off.tokens.items():
            assert tokens == pair.prefill.solo_answer(handed_off.request, choice)


def arrive(pair: SimulatedPair, handed_off: HandedOff) -> None:
    """Compute and transfer its KV, and claim it."""
    while not handed_off.is_decode_due:
        pair.step(pair.prefill)
        pair.drain(ASK, REPLY)
    pair.drain(ASK, REPLY)
    pair.start_decode(handed_off)


def finishing_order(worker: ScriptedEngine) -> list[str]:
    order = []
    while worker.engine.has_work():
        order += [delta.request_id for delta in worker.step() if delta.finish_reason is not None]
    return order


def test_a_seat_goes_to_an_older_request_before_one_whose_kv_has_come() -> None:
    pair = SimulatedPair(config(), config(max_num_seqs=1))
    for name in ("running", "older"):
        pair.decode.engine.add(scripted_request(name, prompt(9, 500)))
        pair.decode.step()
    arrive(pair, submit(pair))
    assert finishing_order(pair.decode) == ["running", "older", "a"]


def test_kv_that_has_come_does_not_wait_for_an_older_request_without_room() -> None:
    pair = SimulatedPair(config(), config(max_num_seqs=1, num_blocks=16))
    pair.decode.engine.add(scripted_request("running", prompt(9, 500)))
    pair.decode.step()
    older = scripted_request("older", prompt(50, 600))
    pair.decode.engine.add(older)
    arrive(pair, submit(pair))
    assert finishing_order(pair.decode) == ["running", "a", "older"]
    assert pair.decode.answers.tokens["older", 0] == pair.decode.solo_answer(older)


def test_a_running_decode_takes_the_place_of_what_nobody_has_claimed() -> None:
    pair = SimulatedPair(config(), config(num_blocks=8), watermark=0.0)
    running = scripted_request("r", prompt(11, 500), SamplingSpec(seed=0, max_tokens=21))
    pair.decode.engine.add(running)
    pair.decode.engine.step()
    submit(pair, 14)
    steps(pair, pair.prefill, 2)
    advance(pair, ASK)
    assert states(pair.decode)["reserved"] == 4
    for _ in range(7):
        pair.decode.step()
    assert outcomes(pair.decode) == {"received_yielded": 1}
    pair.links.flush()
    pair.links.fence()
    pair.decode.run()
    assert pair.decode.answers.tokens["r", 0] == pair.decode.solo_answer(running)


def test_kv_of_other_tokens_is_not_used(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    pair.drain(ASK, REPLY)
    other = scripted_request("a", prompt(18, 700), SamplingSpec(seed=0, max_tokens=6))
    first = pair.decode.solo_answer(other)[:1]
    pair.decode.engine.add(other, DecodeLeg(outputs={0: first}, ticket=handed_off.ticket))
    pair.decode.run()
    assert [*first, *pair.decode.answers.tokens["a", 0]] == pair.decode.solo_answer(other)
    assert outcomes(pair.decode) == {"received_mismatch": 1}


def test_a_leg_without_a_ticket_goes_on_from_any_token(pair: SimulatedPair) -> None:
    request = scripted_request("a", prompt(18), SamplingSpec(seed=0, max_tokens=8), n=2)
    whole = {choice: pair.decode.solo_answer(request, choice) for choice in range(2)}
    leg = DecodeLeg(outputs={choice: tokens[: 3 + choice] for choice, tokens in whole.items()})
    pair.decode.engine.add(request, leg)
    pair.decode.run()
    for choice, tokens in whole.items():
        assert [*leg.outputs[choice], *pair.decode.answers.tokens["a", choice]] == tokens
        assert pair.decode.answers.last["a", choice].finish_reason == "length"
    assert pair.decode.answers.first["a"].kv_source == "recomputed"


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({}, r"the open choices are \[\]"),
        ({2: [1]}, r"the open choices are \[2\]; name at least one, from 0 to 1"),
        ({0: [1, 2, 3, 4]}, "choice 0 already has 4 tokens and may have 4; it has ended"),
        ({0: [1, 2]}, "choice 0 has 2 tokens; KV that is transferred goes on from the first"),
        ({0: [1000]}, "token id 1000 is not in the vocabulary"),
    ],
)
def test_a_decode_leg_must_go_with_its_request(
    pair: SimulatedPair, outputs: dict[int, list[int]], words: str
) -> None:
    request = scripted_request("a", prompt(9), SamplingSpec(seed=0, max_tokens=4), n=2)
    with pytest.raises(InvalidRequestError, match=words):
        pair.decode.engine.add(request, DecodeLeg(outputs=outputs, ticket=pair.ticket("a", 1)))
    assert not pair.decode.engine.has_work()


@pytest.mark.parametrize("on_failure", ["recompute", "fail"])
def test_a_decode_leg_whose_ticket_is_no_good_fails_as_its_policy_says(
    pair: SimulatedPair, on_failure: str
) -> None:
    """FAULTS.md F2."""
    request = scripted_request("a", prompt(9), SamplingSpec(seed=0, max_tokens=4))
    whole = pair.decode.solo_answer(request)
    forged = DecodeLeg(
        outputs={0: whole[:1]}, ticket=SimulatedPair.ticket(pair, "b", 7), on_failure=on_failure
    )
    pair.decode.scheduler.remote_kv._gate.refusal(forged.ticket, "decode", 0.0)
    pair.decode.engine.add(request, forged)
    pair.decode.run()
    assert pair.decode.scheduler.remote_kv.refusals == {"ticket_replayed": 1}
    last = pair.decode.answers.last["a", 0]
    if on_failure == "fail":
        assert last.error is not None
        assert "ticket_replayed" in last.error.message
    else:
        assert pair.decode.answers.tokens["a", 0] == whole[1:]


def test_a_prefill_leg_whose_ticket_is_no_good_is_refused(pair: SimulatedPair) -> None:
    submit(pair)
    again = PrefillLeg(ticket=pair.ticket("a", 1), decode_address=DECODE)
    with pytest.raises(ServiceUnavailableError, match="ticket_replayed"):
        pair.prefill.engine.add(scripted_request("b", prompt(9)), again)
    assert pair.prefill.scheduler.remote_kv.refusals == {"ticket_replayed": 1}


def test_a_worker_apart_from_hand_offs_refuses_a_prefill_leg_and_computes_a_decode_leg(
    pair: SimulatedPair,
) -> None:
    alone = ScriptedEngine(config())
    request = scripted_request("a", prompt(9), SamplingSpec(seed=0, max_tokens=4))
    leg = PrefillLeg(ticket=pair.ticket("a", 1), decode_address=DECODE)
    with pytest.raises(ServiceUnavailableError, match="handoff_off"):
        alone.engine.add(request, leg)
    whole = alone.solo_answer(request)
    alone.engine.add(request, DecodeLeg(outputs={0: whole[:1]}, ticket=leg.ticket, prefill_address=PREFILL))
    alone.run()
    assert alone.answers.tokens["a", 0] == whole[1:]


def test_the_books_name_every_owner(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, pair.prefill, 3)
    advance(pair, ASK, REPLY)
    ticket_id = handed_off.ticket.ticket_id.hex()
    books = pair.prefill.engine.take_stock()
    assert books.owners == {f"offer {ticket_id}": 5, "push 1": 5}
    advance(pair, ASK)
    books = pair.decode.engine.take_stock()
    assert (books.total, sum(books.states.values())) == (32, 32)
    assert books.owners == {f"transfer {ticket_id}": 5}
    pair.drain(ASK, REPLY)
    pair.start_decode(handed_off)
    pair.decode.step()
    assert pair.decode.engine.take_stock().owners == {"request a": 5}


def test_a_live_role_changes_the_chunk(pair: SimulatedPair) -> None:
    pair.decode.engine.set_chunk_budget(3)
    pair.decode.engine.add(scripted_request("a", prompt(7)))
    for _ in range(3):
        pair.decode.step()
    assert computed(pair.decode)[:3] == [(0, 3), (3, 3), (6, 1)]
