"""What crosses on the way: words that come late, twice, early, from another life. Nothing leaks or hangs."""

from collections.abc import Callable

import pytest

from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.kv_handoff import (
    Commit,
    Committed,
    Grant,
    HandoffMessage,
    Renew,
    Reserve,
    Withdraw,
)
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import SECRET, ScriptedEngine, scripted_request
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

SIZES = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=8, max_model_len=64, block_size=4, num_blocks=32
)
SPEC = SamplingSpec(seed=0, max_tokens=6)
ALL = (ASK, REPLY, PULL, PULL_REPLY)


@pytest.fixture
def pair() -> SimulatedPair:
    return SimulatedPair(SIZES, SIZES)


def submit(pair: SimulatedPair, name: str = "a", spec: SamplingSpec = SPEC, **fields: object) -> HandedOff:
    """A prompt of five blocks, the last not full, computed in three steps."""
    return pair.submit(scripted_request(name, list(range(18)), spec, **fields))


def steps(pair: SimulatedPair, number: int) -> None:
    for _ in range(number):
        pair.step(pair.prefill)


def outcomes(worker: ScriptedEngine) -> dict[str, int]:
    return dict(worker.scheduler.remote_kv.transfers)


def refusals(worker: ScriptedEngine) -> dict[str, int]:
    return dict(worker.scheduler.remote_kv.refusals)


def states(worker: ScriptedEngine) -> dict[str, int]:
    return {state: count for state, count in worker.engine.take_stock().states.items() if count}


def settle(pair: SimulatedPair) -> None:
    """All that is under way arrives, without a lease having to end."""
    while pair.links.routes or pair.links.num_fences:
        pair.drain(*ALL)
        while pair.links.num_fences:
            pair.links.fence()
    pair.check_invariants()


def assert_answered(pair: SimulatedPair, handed_off: HandedOff, source: str = "transferred") -> None:
    request = handed_off.request
    for choice in range(request.n):
        assert handed_off.tokens[choice] == pair.prefill.solo_answer(request, choice)
    assert set(handed_off.sources.values()) == {source}
    settle(pair)
    for worker in (pair.prefill, pair.decode):
        assert is_idle(worker)
        assert (worker.engine.load().unaccounted_blocks, worker.engine.load().kv_imbalances) == (0, 0)


@pytest.mark.parametrize("abort", ["at prefill", "at decode", "at both"])
@pytest.mark.parametrize("computed", [1, 3])
def test_an_abort_that_crosses_the_grant_frees_both(pair: SimulatedPair, abort: str, computed: int) -> None:
    submit(pair)
    steps(pair, computed)
    pair.links.advance(ASK)
    assert pair.links.routes == [REPLY]  # the grant is on its way
    if abort != "at decode":
        pair.prefill.engine.abort("a")
    if abort != "at prefill":
        pair.decode.engine.abort_attempt("a")
    pair.links.flush()
    settle(pair)
    assert is_idle(pair.decode)
    assert pair.prefill.engine.has_work() == (abort == "at decode" and computed == 1)
    pair.prefill.engine.abort("a")
    assert is_idle(pair.prefill)
    assert pair.decode.engine.next_deadline() is None


def test_a_grant_that_comes_twice_counts_once(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, 1)
    pair.links.advance(ASK)
    grant = pair.links.lose(REPLY)
    assert isinstance(grant, Grant)
    for _ in range(2):
        pair.prefill.scheduler.remote_kv.heard(DECODE, grant, 0.0, "d")
    pair.links.flush()
    assert refusals(pair.prefill) == {"grant_unasked": 1}
    assert pair.prefill.engine.take_stock().owners["push 1"] == 2
    pair.run()
    assert_answered(pair, handed_off)


def test_a_commit_ahead_of_its_blocks_waits_for_them_and_not_for_ever(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, 3)
    pair.drain(ASK, REPLY)
    again = submit(pair, "b", n=2)
    steps(pair, 1)
    pair.links.advance(ASK)
    grant = pair.links.lose(REPLY)
    assert isinstance(grant, Grant)
    remote_kv = pair.decode.scheduler.remote_kv
    commit = Commit(again.ticket.ticket_id, grant.grant, 18)
    for _ in range(3):
        remote_kv.heard(f"caller {PREFILL}", commit, pair.decode.clock.now(), "p")
        pair.decode.clock.advance(4.0)
        pair.decode.engine.poll()
    pair.links.flush()
    assert outcomes(pair.decode)["received_expired"] == 1  # saying it again prolongs nothing
    pair.run()
    for one in (handed_off, again):
        assert one.tokens[0] == pair.prefill.solo_answer(one.request)
    settle(pair)
    assert is_idle(pair.decode)


@pytest.mark.parametrize("on_failure", ["recompute", "fail"])
def test_a_decode_leg_finds_only_a_tombstone(pair: SimulatedPair, on_failure: str) -> None:
    handed_off = pair.submit(scripted_request("a", list(range(18)), SPEC), on_failure)
    steps(pair, 1)
    pair.links.advance(ASK)
    steps(pair, 2)
    pair.prefill.engine.abort_attempt("a")
    pair.links.flush()
    settle(pair)
    assert outcomes(pair.decode) == {"received_withdrawn": 1}
    pair.start_decode(handed_off)
    assert pair.decode.engine.has_work()  # at once: there is nothing to wait for
    assert refusals(pair.decode) == {"ticket_dead": 1}
    pair.run()
    if on_failure == "fail":
        assert handed_off.error is not None
        assert "ticket_dead" in handed_off.error.error.message
    else:
        assert_answered(pair, handed_off, "recomputed")


def test_a_peer_that_is_lost_leaves_what_is_quarantined_to_its_fence(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, 3)
    pair.links.advance(ASK)
    pair.links.advance(REPLY)
    pair.start_decode(handed_off)
    pair.abort(handed_off)
    assert states(pair.decode) == {"free": 27, "quarantined": 5}
    pair.links.cut(ASK)
    assert states(pair.decode) == {"free": 27, "quarantined": 5}
    assert pair.links.num_fences == 1  # and it is not cancelled twice
    grant = next(iter(pair.links._workers[DECODE].admissions))
    pair.links.fence()
    assert states(pair.decode) == {"free": 32}
    pair.decode.scheduler.remote_kv.fenced(grant, 0.0)
    pair.decode.scheduler.remote_kv.received(grant, (0, 1), 0.0)
    pair.decode.engine.check_invariants()
    assert states(pair.decode) == {"free": 32}


def second_life() -> ScriptedEngine:
    return ScriptedEngine(SIZES, remote=RemoteKVConfig(SECRET, "p2"))


@pytest.mark.parametrize("arrived", ["nothing", "a part", "all of it"])
def test_prefill_begins_another_life_while_decode_holds_a_grant_of_the_last(
    pair: SimulatedPair, arrived: str
) -> None:
    handed_off = submit(pair)
    steps(pair, 1)
    pair.links.advance(ASK)
    pair.links.advance(REPLY)
    steps(pair, 2)
    if arrived != "nothing":
        pair.links.advance(ASK)
    if arrived == "all of it":
        pair.drain(ASK)
    pair.prefill = second_life()
    pair.links.restart(PREFILL, pair.prefill)
    pair.run()
    if arrived == "all of it":
        assert refusals(pair.prefill) == {}
        assert_answered(pair, handed_off)
    else:
        assert refusals(pair.prefill) == {"ticket_incarnation": 1}  # decode has asked it for the KV
        assert_answered(pair, handed_off, "recomputed")
    assert pair.decode.clock.now() == 0.0  # no lease was waited for


SAYINGS: list[Callable[[HandedOff, bytes], HandoffMessage]] = [
    lambda one, grant: Commit(one.ticket.ticket_id, grant, 18, taken=True),
    lambda one, _: Withdraw(one.ticket.ticket_id),
    lambda one, _: Renew(one.ticket.ticket_id),
]


@pytest.mark.parametrize("say", SAYINGS)
def test_another_life_speaks_before_the_loss_of_the_last_is_known(
    pair: SimulatedPair, say: Callable[[HandedOff, bytes], HandoffMessage]
) -> None:
    """Even under the name that the old connection had: what counts is what was proved at the hello."""
    handed_off = submit(pair)
    steps(pair, 1)
    pair.links.advance(ASK)
    [grant] = pair.links._workers[DECODE].admissions
    before = pair.decode.engine.next_deadline()
    pair.decode.clock.advance(1.0)
    remote_kv = pair.decode.scheduler.remote_kv
    remote_kv.heard(f"caller {PREFILL}", say(handed_off, grant), 1.0, "p2")
    assert refusals(pair.decode) == {"ticket_peer": 1}
    assert states(pair.decode) == {"free": 27, "reserved": 5}
    assert pair.decode.engine.next_deadline() == before
    pair.run()
    assert_answered(pair, handed_off)


@pytest.mark.parametrize(
    "say",
    [
        lambda one: Grant(one.ticket.ticket_id, b"g" * 16, [0]),
        lambda one: Committed(one.ticket.ticket_id),
        lambda one: Withdraw(one.ticket.ticket_id),
        lambda one: Renew(one.ticket.ticket_id),
    ],
)
def test_another_life_of_decode_gets_and_ends_nothing(
    pair: SimulatedPair, say: Callable[[HandedOff], HandoffMessage]
) -> None:
    handed_off = submit(pair)
    steps(pair, 3)
    pair.prefill.clock.advance(1.0)
    pair.prefill.scheduler.remote_kv.heard(DECODE, say(handed_off), 1.0, "d2")
    assert refusals(pair.prefill) == {"ticket_peer": 1}
    assert states(pair.prefill)["held"] == 5
    assert pair.prefill.engine.next_deadline() == 30.0
    pair.run()
    assert_answered(pair, handed_off)


def test_decode_begins_another_life_before_it_is_asked_for_room(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, 1)
    question = pair.links.lose(ASK)
    assert isinstance(question, Reserve)
    pair.decode = ScriptedEngine(SIZES, remote=RemoteKVConfig(SECRET, "d2"))
    pair.links.restart(DECODE, pair.decode)
    pair.decode.scheduler.remote_kv.heard(f"caller {PREFILL}", question, 0.0, "p")
    pair.links.flush()
    steps(pair, 2)
    settle(pair)
    assert refusals(pair.decode) == {"ticket_incarnation": 1}
    assert outcomes(pair.prefill) == {"sent_refused_ticket": 1}  # a no is taken from whoever was asked
    assert is_idle(pair.prefill)
    pair.run()
    assert_answered(pair, handed_off, "recomputed")


def test_a_role_changes_while_blocks_are_on_their_way(pair: SimulatedPair) -> None:
    handed_off = submit(pair)
    steps(pair, 1)
    pair.links.advance(ASK)
    for worker, budget in ((pair.prefill, 3), (pair.decode, 2)):
        worker.engine.set_chunk_budget(budget)
    pair.links.advance(REPLY)
    steps(pair, 1)
    pair.links.advance(ASK)
    pair.prefill.engine.set_chunk_budget(8)
    pair.run()
    assert [one.start for batch in pair.prefill.executor.batches for one in batch.sequences] == [0, 8, 11]
    assert_answered(pair, handed_off)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_all_choices_but_one_end_with_their_first_token(pair: SimulatedPair, left: int) -> None:
    request = scripted_request("a", list(range(18)), n=3)
    firsts = [pair.prefill.solo_answer(request, choice)[0] for choice in range(3)]
    ended = tuple(token for choice, token in enumerate(firsts) if choice != left)
    assert firsts[left] not in ended
    handed_off = submit(pair, spec=SamplingSpec(seed=0, max_tokens=6, eos_token_ids=ended), n=3)
    steps(pair, 3)
    pair.drain(ASK, REPLY)
    pair.start_decode(handed_off)
    pair.step(pair.decode)
    assert states(pair.decode)["held"] == 5  # one branch, which copies nothing
    pair.run()
    assert handed_off.sources == {left: "transferred"}
    assert_answered(pair, handed_off)
    assert outcomes(pair.decode) == {"received_committed": 1}


@pytest.mark.parametrize("moment", ["asked", "granted", "half here", "all here", "claimed", "running"])
def test_prefixes_are_forgotten_while_blocks_are_granted_filled_or_committed(
    pair: SimulatedPair, moment: str
) -> None:
    """POST /reset_prefix_cache, at both workers; and what came is not found by those who come after it."""
    first = submit(pair, "first")
    pair.run()
    handed_off = pair.submit(scripted_request("a", list(range(300, 318)), SPEC))
    script: list[tuple[str, Callable[[], object]]] = [
        ("asked", lambda: pair.step(pair.prefill)),
        ("granted", lambda: pair.links.advance(ASK)),
        ("half here", lambda: (pair.links.advance(REPLY), pair.links.advance(ASK), steps(pair, 2))),
        ("all here", lambda: pair.drain(ASK, REPLY)),
        ("claimed", lambda: pair.start_decode(handed_off)),
        ("running", lambda: pair.step(pair.decode)),
    ]
    for name, act in script:
        act()
        if name == moment:
            for worker in (pair.prefill, pair.decode):
                worker.engine.reset_prefix_cache()
                assert worker.engine.load().cached_blocks == 0
        pair.check_invariants()
    pair.run()
    assert_answered(pair, first)
    assert_answered(pair, handed_off)
    for worker in (pair.prefill, pair.decode):
        worker.engine.reset_prefix_cache()
        assert states(worker) == {"free": 32}
