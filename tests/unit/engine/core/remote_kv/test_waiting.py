"""How long a worker waits for another: shares of the lease, renewed by progress, bounded by the ticket."""

from dataclasses import replace as replaced

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from atomesh.engine.core.remote_kv.actions import Push, Send
from atomesh.engine.core.remote_kv.config import SLOWEST_LINK, RemoteKVConfig
from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.generation import DecodeLeg, PrefillLeg
from atomesh.protocol.kv_handoff import Commit, Grant, Pull, Renew, Reserve
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.ticket import Ticket, sign
from atomesh.testing.scripted_engine import SECRET, ScriptedEngine, scripted_request
from atomesh.testing.simulated_pair import (
    ASK,
    DECODE,
    PULL,
    PULL_REPLY,
    REPLY,
    TTL_S,
    HandedOff,
    SimulatedPair,
    is_idle,
)

SIZES = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=8, max_model_len=64, block_size=4, num_blocks=32
)
LEASE_S, GRANT_LEASE_S, STALL_S = 30.0, 10.0, 2.0  # the defaults
PROMPT = list(range(10))  # three blocks, the last not full
HASHES = [bytes(one) for one in BlockHasher(SECRET, "scripted", SIZES.block_size).chain(PROMPT)]


def submit(pair: SimulatedPair) -> HandedOff:
    """A prompt of five blocks, computed in three steps."""
    return pair.submit(scripted_request("a", list(range(18)), SamplingSpec(seed=0, max_tokens=6)))


def steps(pair: SimulatedPair, number: int) -> None:
    for _ in range(number):
        pair.step(pair.prefill)


def outcomes(worker: ScriptedEngine) -> dict[str, int]:
    return dict(worker.scheduler.remote_kv.transfers)


def assert_answered(pair: SimulatedPair, handed_off: HandedOff, source: str) -> None:
    assert handed_off.tokens == {0: pair.prefill.solo_answer(handed_off.request)}
    assert handed_off.sources == {0: source}


@pytest.fixture
def pair() -> SimulatedPair:
    return SimulatedPair(SIZES, SIZES)


@pytest.fixture
def claimed(pair: SimulatedPair) -> HandedOff:
    """The prompt is computed and pushed in three parts, of which the first has come; its decode leg waits."""
    handed_off = submit(pair)
    steps(pair, 1)
    pair.drain(ASK, REPLY)
    steps(pair, 2)
    pair.start_decode(handed_off)
    return handed_off


def test_a_lost_commit_costs_a_fifteenth_of_the_lease(pair: SimulatedPair, claimed: HandedOff) -> None:
    for _ in range(2):
        pair.links.advance(ASK)
    lost = pair.links.lose(ASK)
    assert isinstance(lost, Commit)
    pair.advance_clock(STALL_S - 0.1)
    assert not pair.decode.engine.has_work()
    pair.advance_clock(0.1)
    assert pair.decode.engine.has_work()
    assert outcomes(pair.decode) == {"received_expired": 1}
    pair.run()
    assert_answered(pair, claimed, "recomputed")
    assert pair.decode.clock.now() == pytest.approx(STALL_S)
    assert pair.decode.executor.batches[0].sequences[0].start == 16  # of what had come, nothing is lost


def test_a_decode_leg_does_not_wait_for_a_peer_that_has_fallen_silent(
    pair: SimulatedPair, claimed: HandedOff
) -> None:
    pair.advance_clock(STALL_S)
    assert pair.decode.engine.has_work()
    pair.run()
    assert_answered(pair, claimed, "recomputed")


def test_what_keeps_coming_is_waited_for(pair: SimulatedPair, claimed: HandedOff) -> None:
    for _ in range(2):
        pair.advance_clock(STALL_S - 0.1)
        pair.links.advance(ASK)
    pair.advance_clock(STALL_S - 0.1)
    pair.drain(ASK)
    pair.run()
    assert_answered(pair, claimed, "transferred")
    assert pair.decode.clock.now() == pytest.approx(3 * STALL_S - 0.3)


def test_a_peer_that_has_not_begun_may_be_computing(pair: SimulatedPair) -> None:
    """It listens between two steps only, and its step may be long."""
    handed_off = submit(pair)
    steps(pair, 3)
    pair.links.advance(ASK)
    pair.start_decode(handed_off)
    pair.advance_clock(GRANT_LEASE_S - 0.1)
    pair.drain(REPLY, ASK)
    pair.run()
    assert_answered(pair, handed_off, "transferred")


def test_but_not_for_longer_than_a_grant_lasts(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, 3)
    pair.links.advance(ASK)
    pair.start_decode(handed_off)
    pair.advance_clock(GRANT_LEASE_S)
    assert outcomes(pair.decode) == {"received_expired": 1}
    pair.run()
    assert_answered(pair, handed_off, "recomputed")


# One worker alone: what it says, and when it wants to be asked again.


def ticket(ttl_s: float = TTL_S) -> Ticket:
    return sign(SECRET, replace(SimulatedPair(SIZES, SIZES).ticket("a", 1), ttl_s=ttl_s))


def worker(incarnation: str, block_bytes: int = 0, lease_s: float = LEASE_S) -> ScriptedEngine:
    remote = RemoteKVConfig(SECRET, incarnation, lease_s=lease_s, block_bytes=block_bytes)
    return ScriptedEngine(SIZES, remote=remote)


def grant(decode: ScriptedEngine, ttl_s: float = TTL_S) -> bytes:
    """Room for three blocks."""
    remote_kv = decode.scheduler.remote_kv
    remote_kv.heard("p", Reserve(ticket(ttl_s), HASHES, 10), decode.clock.now(), "p")
    answer = remote_kv.take_actions()[-1]
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Grant)
    return answer.message.grant


def test_a_push_has_a_stall_s_time_and_that_of_all_bytes_before_it() -> None:
    prefill = worker("p", block_bytes=SLOWEST_LINK // 4)
    leg = PrefillLeg(ticket=ticket(), decode_address=DECODE)
    prefill.engine.add(scripted_request("a", list(range(12))), leg)
    prefill.step()
    remote_kv = prefill.scheduler.remote_kv
    remote_kv.heard(DECODE, Grant(leg.ticket.ticket_id, b"g" * 16, [0, 1, 2]), 0.0, "d")
    first = remote_kv.take_actions()[-1]
    prefill.step()
    second = next(action for action in remote_kv.take_actions() if isinstance(action, Push))
    assert isinstance(first, Push)
    assert (len(first.blocks), first.deadline_s) == (2, STALL_S + 0.5)
    assert (len(second.blocks), second.deadline_s) == (1, STALL_S + 0.75)
    remote_kv.pushed(first.push_id, 0.0)
    remote_kv.heard("#1 d", Pull(leg.ticket, b"h" * 16, [0]), 0.0, "d")
    third = next(action for action in remote_kv.take_actions() if isinstance(action, Push))
    assert third.deadline_s == STALL_S + 0.5  # the second is still under way


def test_a_slow_link_is_given_the_time_of_all_that_is_to_come() -> None:
    decode = worker("d", block_bytes=SLOWEST_LINK)
    token = grant(decode)
    decode.scheduler.remote_kv.received(token, (0,), 0.0)
    assert decode.engine.next_deadline() == GRANT_LEASE_S  # nobody waits yet
    decode.engine.add(scripted_request("a", PROMPT), DecodeLeg(outputs={0: [5]}, ticket=ticket()))
    assert decode.engine.next_deadline() == STALL_S + 2  # two blocks, a second each
    decode.scheduler.remote_kv.received(token, (1,), 1.0)
    assert decode.engine.next_deadline() == 1.0 + STALL_S + 1


def test_a_decode_leg_waits_for_blocks_that_come_along_slowly() -> None:
    decode = worker("d", block_bytes=SLOWEST_LINK)
    token = grant(decode)
    remote_kv = decode.scheduler.remote_kv
    remote_kv.received(token, (0,), 0.0)
    decode.engine.add(scripted_request("a", PROMPT), DecodeLeg(outputs={0: [5]}, ticket=ticket()))
    for now in (3.0, 6.0, 9.0):
        remote_kv.arriving(token, now)
        assert decode.engine.next_deadline() == now + STALL_S + 2
    remote_kv.arriving(b"X" * 16, 12.0)
    assert decode.engine.next_deadline() == 9.0 + STALL_S + 2


@pytest.mark.parametrize("is_claimed", [False, True])
def test_what_comes_along_keeps_no_grant_beyond_its_ticket(*, is_claimed: bool) -> None:
    decode = worker("d")
    token = grant(decode, ttl_s=12.0)
    if is_claimed:
        leg = DecodeLeg(outputs={0: [5]}, ticket=ticket(ttl_s=12.0))
        decode.engine.add(scripted_request("a", PROMPT), leg)
    decode.scheduler.remote_kv.arriving(token, 8.0)
    assert decode.engine.next_deadline() == 12.0


@pytest.mark.parametrize("lease_s", [3.0, 30.0, 300.0])
def test_the_lease_governs_every_wait(lease_s: float) -> None:
    config = RemoteKVConfig(SECRET, "d", lease_s=lease_s)
    shares = (config.offer_lease_s, config.grant_lease_s, config.stall_s(5))
    assert shares == pytest.approx((lease_s, lease_s / 3, lease_s / 15))
    decode = worker("d", lease_s=lease_s)
    grant(decode)
    assert decode.engine.next_deadline() == pytest.approx(lease_s / 3)


def test_no_renewal_of_a_grant_outlasts_the_ticket() -> None:
    decode = worker("d")
    grant(decode, ttl_s=12.0)
    for _ in range(4):
        decode.clock.advance(4.0)
        decode.scheduler.remote_kv.heard("p", Renew(ticket().ticket_id), decode.clock.now(), "p")
        decode.engine.poll()
    assert outcomes(decode) == {"received_expired": 1}
    assert decode.clock.now() == 16.0


# Decode has no room yet: prefill keeps the KV for as long as decode queues the request.


def queue() -> tuple[SimulatedPair, HandedOff]:
    """Decode was full, and another request has its room; the leg waits for its turn to pull."""
    pair = SimulatedPair(SIZES, replaced(SIZES, num_blocks=16))
    other = scripted_request("other", list(range(500, 546)), SamplingSpec(seed=0, max_tokens=10))
    pair.decode.engine.add(other)
    for _ in range(6):
        pair.step(pair.decode)
    handed_off = submit(pair)
    steps(pair, 3)
    pair.drain(ASK, REPLY)
    pair.start_decode(handed_off)
    return pair, handed_off


@pytest.fixture
def queued() -> tuple[SimulatedPair, HandedOff]:
    return queue()


def test_kv_is_kept_while_its_request_is_queued(queued: tuple[SimulatedPair, HandedOff]) -> None:
    pair, handed_off = queued
    assert pair.decode.engine.next_deadline() == LEASE_S / 3
    for _ in range(20):
        pair.advance_clock(LEASE_S / 3)
        pair.drain(PULL)
    assert pair.decode.clock.now() == 200.0
    pair.run()
    assert_answered(pair, handed_off, "transferred")
    assert outcomes(pair.prefill) == {"sent_committed": 1}


@given(waits=st.lists(st.floats(0.01, 19.9), max_size=30))
def test_whenever_decode_looks_in_it_is_soon_enough(waits: list[float]) -> None:
    pair, handed_off = queue()
    for seconds in waits:
        if pair.decode.clock.now() + seconds < TTL_S:
            pair.advance_clock(seconds)
            pair.drain(PULL)
    pair.run()
    assert_answered(pair, handed_off, "transferred")


def test_what_nobody_renews_lapses(queued: tuple[SimulatedPair, HandedOff]) -> None:
    pair, handed_off = queued
    pair.advance_clock(LEASE_S)
    assert outcomes(pair.prefill) == {"sent_expired": 1}
    assert is_idle(pair.prefill)
    pair.run()
    assert_answered(pair, handed_off, "recomputed")


def test_no_renewal_of_an_offer_outlasts_the_ticket(queued: tuple[SimulatedPair, HandedOff]) -> None:
    pair, handed_off = queued
    for _ in range(int(TTL_S / LEASE_S) * 3 - 1):
        pair.advance_clock(LEASE_S / 3)
        pair.drain(PULL)
    assert outcomes(pair.prefill) == {}
    pair.advance_clock(LEASE_S / 3)
    assert pair.prefill.clock.now() == TTL_S
    assert outcomes(pair.prefill) == {"sent_expired": 1}
    pair.run()
    assert_answered(pair, handed_off, "recomputed")


def test_who_is_not_queued_any_more_renews_nothing(queued: tuple[SimulatedPair, HandedOff]) -> None:
    pair, handed_off = queued
    pair.decode.engine.abort(handed_off.request.request_id)
    pair.links.flush()
    assert pair.decode.engine.next_deadline() is None
    pair.drain(PULL)
    assert outcomes(pair.prefill) == {"sent_withdrawn": 1}
    assert is_idle(pair.prefill)
    pair.drain(PULL_REPLY)
