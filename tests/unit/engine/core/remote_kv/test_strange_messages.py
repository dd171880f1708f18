"""What a peer may not say, or not yet: refused and counted, and the books stay right."""

import pytest
from msgspec.structs import replace

from atomesh.engine.core.remote_kv.actions import Action, Admit, Cancel, Push, Send
from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.generation import PrefillLeg
from atomesh.protocol.kv_handoff import (
    Commit,
    Committed,
    Grant,
    HandoffMessage,
    Pull,
    Refuse,
    Renew,
    Reserve,
    Withdraw,
)
from atomesh.testing.scripted_engine import ScriptedEngine, scripted_request
from atomesh.testing.simulated_pair import DECODE, SimulatedPair

SIZES = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, block_size=4, num_blocks=16
)
HASHES = [bytes([number]) * 16 for number in range(2)]
PAIR = SimulatedPair(SIZES, SIZES)
TICKET = PAIR.ticket("a", 1)
ID = TICKET.ticket_id
ANY_GRANT = b"g" * 16


@pytest.fixture
def decode() -> ScriptedEngine:
    return SimulatedPair(SIZES, SIZES).decode


@pytest.fixture
def prefill() -> ScriptedEngine:
    """Has computed a prompt of three blocks, the last not full, and asked decode for room."""
    worker = SimulatedPair(SIZES, SIZES).prefill
    leg = PrefillLeg(ticket=TICKET, decode_address=DECODE)
    worker.engine.add(scripted_request("a", list(range(10))), leg)
    worker.step()
    assert [type(one.message) for one in actions(worker) if isinstance(one, Send)] == [Reserve]
    return worker


def actions(worker: ScriptedEngine) -> list[Action]:
    return worker.scheduler.remote_kv.take_actions()


def hear(
    worker: ScriptedEngine, message: HandoffMessage, peer: str = DECODE, incarnation: str | None = None
) -> list[Action]:
    """What a worker says who has proved to be the other one of the pair, or `incarnation`."""
    other = {"p": "d", "d": "p"}[worker.scheduler.remote_kv.incarnation]
    worker.scheduler.remote_kv.heard(peer, message, worker.clock.now(), incarnation or other)
    worker.engine.check_invariants()
    return actions(worker)


def grant(worker: ScriptedEngine) -> bytes:
    admit, answer = hear(worker, Reserve(TICKET, HASHES, 10), "p")
    assert isinstance(admit, Admit)
    assert isinstance(answer, Send)
    assert answer.message == Grant(ID, admit.grant, [0, 1, 2])
    assert sorted(admit.targets) == [0, 1, 2]
    return admit.grant


def states(worker: ScriptedEngine) -> dict[str, int]:
    return {state: count for state, count in worker.engine.take_stock().states.items() if count}


@pytest.mark.parametrize(
    ("hashes", "num_tokens"),
    [(HASHES, 0), (HASHES, -8), (HASHES, 12), (HASHES, 7), ([], 2**60), ([b"", b""], 10), (HASHES[:1], 10)],
)
def test_a_malformed_offer_is_refused_and_does_not_use_the_ticket_up(
    decode: ScriptedEngine, hashes: list[bytes], num_tokens: int
) -> None:
    assert hear(decode, Reserve(TICKET, hashes, num_tokens), "p") == [Send("p", Refuse(ID, "ticket"))]
    assert decode.scheduler.remote_kv.refusals == {"reserve_malformed": 1}
    grant(decode)


@pytest.mark.parametrize("change", [{"mac": b"0" * 32}, {"prefill": "q"}, {"decode": "e"}, {"ttl_s": 5.0}])
def test_an_offer_under_a_forged_ticket_is_refused(decode: ScriptedEngine, change: dict[str, object]) -> None:
    answer = hear(decode, Reserve(replace(TICKET, **change), HASHES, 10), "p")
    assert answer == [Send("p", Refuse(ID, "ticket"))]
    assert decode.scheduler.remote_kv.refusals == {"ticket_forged": 1}
    assert states(decode) == {"free": 16}


def test_a_genuine_ticket_shown_by_another_worker_reserves_nothing_and_stays_good(
    decode: ScriptedEngine,
) -> None:
    """FAULTS.md F2."""
    answer = hear(decode, Reserve(TICKET, HASHES, 10), "q", "somebody")
    assert answer == [Send("q", Refuse(ID, "ticket"))]
    assert decode.scheduler.remote_kv.refusals == {"ticket_peer": 1}
    assert states(decode) == {"free": 16}
    grant(decode)


def test_a_genuine_ticket_shown_by_another_worker_pulls_nothing_and_stays_good(
    prefill: ScriptedEngine,
) -> None:
    assert hear(prefill, Pull(TICKET, ANY_GRANT, [0, 1, 2]), "q", "somebody") == [
        Send("q", Refuse(ID, "ticket"))
    ]
    assert prefill.scheduler.remote_kv.refusals == {"ticket_peer": 1}
    push, _ = hear(prefill, Pull(TICKET, ANY_GRANT, [0, 1, 2]), "q", "d")
    assert isinstance(push, Push)


def test_an_offer_that_can_never_fit_is_refused_as_full(decode: ScriptedEngine) -> None:
    wish = Reserve(TICKET, [bytes([number]) * 16 for number in range(16)], 64)
    assert hear(decode, wish, "p") == [Send("p", Refuse(ID, "full"))]


def test_a_replayed_offer_is_refused_and_the_grant_stands(decode: ScriptedEngine) -> None:
    grant(decode)
    assert hear(decode, Reserve(TICKET, HASHES, 10), "q") == [Send("q", Refuse(ID, "ticket"))]
    assert states(decode) == {"free": 13, "reserved": 3}


@pytest.mark.parametrize(("indices", "num_tokens"), [((0, 1), 10), ((), 10), ((0, 1, 2), 9), ((0, 1, 2), 12)])
def test_a_commit_is_believed_only_when_all_has_come(
    decode: ScriptedEngine, indices: tuple[int, ...], num_tokens: int
) -> None:
    token = grant(decode)
    decode.scheduler.remote_kv.received(token, indices, 0.0)
    sent, *fence = hear(decode, Commit(ID, token, num_tokens, taken=True), "p")
    assert sent == Send("p", Refuse(ID, "coverage"))
    assert fence == ([Cancel(token)] if len(indices) < 3 else [])
    assert decode.scheduler.remote_kv.transfers == {"received_coverage": 1}
    assert states(decode).get("quarantined", 0) == 3 - len(indices)


@pytest.mark.parametrize(
    ("peer", "ticket_id", "change"), [("q", ID, b""), ("p", b"x" * 16, b""), ("p", ID, b"x")]
)
def test_a_strangers_commit_is_not_heard(
    decode: ScriptedEngine, peer: str, ticket_id: bytes, change: bytes
) -> None:
    token = grant(decode)
    decode.scheduler.remote_kv.received(token, (0, 1, 2), 0.0)
    assert hear(decode, Commit(ticket_id, change + token[len(change) :], 10), peer) == []
    assert decode.scheduler.remote_kv.refusals == {"commit_unknown": 1}
    assert hear(decode, Commit(ID, token, 10), "p") == [Send("p", Committed(ID))]
    assert hear(decode, Commit(ID, token, 10), "p") == []  # once is enough


@pytest.mark.parametrize("message", [Withdraw(ID), Refuse(ID, "gone"), Renew(ID)])
def test_a_stranger_cannot_end_or_prolong_a_transfer(decode: ScriptedEngine, message: HandoffMessage) -> None:
    grant(decode)
    decode.clock.advance(5.0)
    assert hear(decode, message, "q") == []
    assert states(decode) == {"free": 13, "reserved": 3}
    assert decode.engine.next_deadline() == 10.0
    hear(decode, Renew(ID), "p")
    assert decode.engine.next_deadline() == 15.0


def test_what_comes_twice_or_under_no_grant_counts_once_or_not(decode: ScriptedEngine) -> None:
    token = grant(decode)
    remote_kv = decode.scheduler.remote_kv
    remote_kv.received(token, (1, 1), 0.0)
    remote_kv.received(token, (1, 7, -1), 0.0)
    remote_kv.received(ANY_GRANT, (0, 1, 2), 0.0)
    remote_kv.damaged(ANY_GRANT, "", 0.0)
    remote_kv.fenced(ANY_GRANT, 0.0)
    remote_kv.peer_lost("q", "", 0.0)
    decode.engine.check_invariants()
    assert states(decode) == {"free": 13, "held": 1, "reserved": 2}


@pytest.mark.parametrize(
    ("token", "missing"),
    [
        (b"g" * 15, [0]),
        (b"", []),
        (ANY_GRANT, [0, 0]),
        (ANY_GRANT, [3]),
        (ANY_GRANT, [-1]),
        (ANY_GRANT, [2**40]),
    ],
)
def test_a_malformed_grant_ends_the_offer(prefill: ScriptedEngine, token: bytes, missing: list[int]) -> None:
    assert hear(prefill, Grant(ID, token, missing)) == [Send(DECODE, Withdraw(ID))]
    assert prefill.scheduler.remote_kv.refusals == {"grant_malformed": 1}
    assert states(prefill) == {"free": 14, "cached": 2}


def test_only_the_peer_that_was_asked_grants_and_only_once(prefill: ScriptedEngine) -> None:
    assert hear(prefill, Grant(ID, ANY_GRANT, [0]), "q") == []
    push, _ = hear(prefill, Grant(ID, ANY_GRANT, [0]))
    assert isinstance(push, Push)
    assert list(push.blocks) == [0]
    assert hear(prefill, Grant(ID, b"h" * 16, [0])) == []
    assert prefill.scheduler.remote_kv.refusals == {"grant_unasked": 2}
    assert hear(prefill, Grant(b"x" * 16, ANY_GRANT, [0])) == []


def test_a_grant_of_nothing_is_committed_at_once(prefill: ScriptedEngine) -> None:
    commit = Commit(ID, ANY_GRANT, 10, taken=True)
    assert hear(prefill, Grant(ID, ANY_GRANT, [])) == [Send(DECODE, commit)]
    assert hear(prefill, Committed(ID), "q") == []
    assert states(prefill)["held"] == 3
    hear(prefill, Committed(ID))
    assert states(prefill) == {"free": 14, "cached": 2}


def test_a_commit_goes_with_the_last_push_and_again_when_all_has_been_taken(prefill: ScriptedEngine) -> None:
    push, commit = hear(prefill, Grant(ID, ANY_GRANT, [0, 2]))
    assert isinstance(push, Push)
    assert commit == Send(DECODE, Commit(ID, ANY_GRANT, 10))
    prefill.scheduler.remote_kv.pushed(push.push_id + 1, 0.0)
    assert actions(prefill) == []
    prefill.scheduler.remote_kv.pushed(push.push_id, 0.0)
    assert actions(prefill) == [Send(DECODE, Commit(ID, ANY_GRANT, 10, taken=True))]


def test_a_commit_that_comes_before_the_last_block_counts_when_that_has_come(decode: ScriptedEngine) -> None:
    token = grant(decode)
    decode.scheduler.remote_kv.received(token, (0, 2), 0.0)
    assert hear(decode, Commit(ID, token, 10), "p") == []
    decode.scheduler.remote_kv.received(token, (1,), 0.0)
    assert actions(decode) == [Send("p", Committed(ID))]


def test_blocks_stay_held_while_they_are_read_even_after_the_answer(prefill: ScriptedEngine) -> None:
    push, _ = hear(prefill, Grant(ID, ANY_GRANT, [0, 1, 2]))
    assert isinstance(push, Push)
    hear(prefill, Committed(ID))
    assert states(prefill)["held"] == 3
    prefill.scheduler.remote_kv.pushed(push.push_id, 0.0)
    assert states(prefill) == {"free": 14, "cached": 2}


def test_an_abort_after_the_transfer_tells_decode_for_as_long_as_that_may_wait(
    prefill: ScriptedEngine,
) -> None:
    hear(prefill, Grant(ID, ANY_GRANT, []))
    hear(prefill, Committed(ID))
    prefill.engine.abort("a")
    assert actions(prefill) == [Send(DECODE, Withdraw(ID))]
    prefill.engine.abort("a")
    assert actions(prefill) == []


def test_a_delivery_is_forgotten_with_decodes_lease(prefill: ScriptedEngine) -> None:
    hear(prefill, Grant(ID, ANY_GRANT, []))
    hear(prefill, Committed(ID))
    prefill.clock.advance(30.0)
    prefill.engine.poll()
    prefill.engine.abort("a")
    assert actions(prefill) == []


def test_a_push_under_an_old_grant_neither_commits_nor_fails_the_new_one(prefill: ScriptedEngine) -> None:
    old, _ = hear(prefill, Grant(ID, ANY_GRANT, [0]))
    new, _ = hear(prefill, Pull(TICKET, b"h" * 16, [0, 1]), "q")
    assert isinstance(old, Push)
    assert isinstance(new, Push)
    prefill.scheduler.remote_kv.push_failed(old.push_id, "cancelled", 0.0)
    assert hear(prefill, Refuse(ID, "full")) == []  # about the old grant, by the peer that gave it
    assert actions(prefill) == []
    prefill.scheduler.remote_kv.pushed(new.push_id, 0.0)
    assert actions(prefill) == [Send("q", Commit(ID, b"h" * 16, 10, taken=True))]


@pytest.mark.parametrize(
    ("change", "answer", "counted"),
    [
        ({"mac": b""}, "ticket", {"ticket_forged": 1}),
        ({"prefill": "q"}, "ticket", {"ticket_forged": 1}),
        ({}, "gone", {}),
    ],
)
def test_nothing_is_pushed_to_who_has_no_right_to_it(
    prefill: ScriptedEngine, change: dict[str, object], answer: str, counted: dict[str, int]
) -> None:
    prefill.engine.abort("a")
    actions(prefill)
    pull = Pull(replace(TICKET, **change), ANY_GRANT, [0, 1, 2])
    assert hear(prefill, pull, "q") == [Send("q", Refuse(ID, answer))]
    assert prefill.scheduler.remote_kv.refusals == counted


def test_a_ticket_is_pulled_on_once(prefill: ScriptedEngine) -> None:
    hear(prefill, Pull(TICKET, ANY_GRANT, [0]), "q")
    assert hear(prefill, Pull(TICKET, b"h" * 16, [0]), "r") == [Send("r", Refuse(ID, "ticket"))]


@pytest.mark.parametrize("reason", ["ticket", "gone", "coverage", "damaged"])
def test_a_refusal_that_is_final_lets_the_blocks_go(prefill: ScriptedEngine, reason: str) -> None:
    assert hear(prefill, Refuse(ID, reason), "q") == []
    assert states(prefill)["held"] == 3
    assert hear(prefill, Refuse(ID, reason)) == []
    assert states(prefill) == {"free": 14, "cached": 2}
    assert prefill.scheduler.remote_kv.transfers == {f"sent_refused_{reason}": 1}
