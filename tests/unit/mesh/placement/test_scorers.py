"""Each term by hand, on a worker of round figures."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.case import Case, make_case
from atomesh.mesh.placement.costs import Costs, LinkCosts, StepCosts
from atomesh.mesh.placement.inputs import RequestFacts, Weights
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.mesh.placement.scorers.compute import compute
from atomesh.mesh.placement.scorers.crowding import crowding
from atomesh.mesh.placement.scorers.decode_queue import decode_queue
from atomesh.mesh.placement.scorers.decode_step import decode_step
from atomesh.mesh.placement.scorers.fetch import fetch
from atomesh.mesh.placement.scorers.hand_off import hand_off
from atomesh.mesh.placement.scorers.interference import interference
from atomesh.mesh.placement.scorers.queue import queue
from atomesh.mesh.placement.scorers.relief import relief
from atomesh.mesh.placement.scorers.room import room
from atomesh.mesh.placement.scorers.waste import waste
from atomesh.mesh.placement.seats import ASK_S, Seat, take_seat, with_fetches
from atomesh.protocol.generation import LEAST_PATIENCE_S
from atomesh.protocol.worker import LoadReport
from atomesh.testing.mesh_snapshots import LAYOUT, worker_snapshot
from atomesh.testing.placed import placement_inputs

STEP = StepCosts(fixed_s=1.0, token_s=0.1, quadratic_s=0.001, context_s=0.01, sequence_s=0.5, chunk_tokens=50)
LINK = LinkCosts(latency_s=0.25, byte_s=0.001)
COSTS = Costs(default_step=STEP, default_link=LINK)
REQUEST = RequestFacts(num_prompt_tokens=100, choices=2, output_tokens=10)
WEIGHTS = Weights(waste=1.0, most_waste=4.0, interference=0.25)
TOKEN_BYTES = LAYOUT.block_bytes / LAYOUT.block_size  # 8


def seats_for(*workers: dict[str, Any], **fields: Any) -> tuple[Case, list[Seat]]:
    """Workers w0, w1 … of these fields; `matched`, `host` and `promised` are blocks of 16 tokens."""
    held = {
        f"w{n}-life": MatchedBlocks(
            worker.pop("matched", 0), worker.pop("host", 0), worker.pop("promised", 0)
        )
        for n, worker in enumerate(workers)
    }
    snapshots = [worker_snapshot(f"w{n}", **worker) for n, worker in enumerate(workers)]
    values = {"request": REQUEST, "costs": COSTS, "matches": held, "weights": WEIGHTS, **fields}
    inputs = placement_inputs(*snapshots, **values)
    plain = [take_seat(worker, inputs) for worker in snapshots]
    seats = list(with_fetches(plain, plain, inputs))
    return make_case(inputs, seats), seats


def seat_for(**worker: Any) -> tuple[Seat, Case]:
    case, [seat] = seats_for(worker)
    return seat, case


def test_what_a_worker_holds_of_a_prompt_leaves_its_last_token_to_compute() -> None:
    seat, _ = seat_for(matched=3)
    assert (seat.cached_tokens, seat.host_tokens, seat.ready_tokens) == (48, 0, 48)
    seat, _ = seat_for(matched=3, host=9)
    assert (seat.cached_tokens, seat.host_tokens, seat.ready_tokens) == (48, 51, 99)


def test_compute_is_what_is_not_cached() -> None:
    seat, case = seat_for(matched=3)
    assert compute(seat, case) == pytest.approx(2 * 1.0 + 52 * 0.1 + (100**2 - 48**2) * 0.001)


def test_queue_is_the_prompts_before_and_the_decode_steps_between() -> None:
    seat, case = seat_for(
        prefill_tokens=60, prefill_quadratic=3000, decoding=4, sequences=4, context_tokens=200
    )
    before = 2 * 1.0 + 60 * 0.1 + 3000 * 0.001
    assert seat.queued_s == pytest.approx(before)
    assert queue(seat, case) == pytest.approx(before + 4 * (200 * 0.01 + 4 * 0.5))
    seat, case = seat_for()
    assert queue(seat, case) == 0.0


def test_what_other_gateways_sent_counts_where_the_worker_decodes() -> None:
    load = LoadReport(running=5, waiting=2)
    assert seat_for(load=load, sequences=3, decoding=3)[0].batch == 7
    assert seat_for(role="prefill", load=load, sequences=3, decoding=0)[0].batch == 0


def test_waste_is_what_the_best_holder_would_spare_at_the_price_of_the_queue() -> None:
    case, [holder, other] = seats_for({"matched": 3, "prefill_tokens": 100, "prefill_quadratic": 10_000}, {})
    own_s = 2 * 1.0 + 100 * 0.1 + 100**2 * 0.001
    assert case.waste_price == pytest.approx(own_s / (2 * own_s))
    assert waste(holder, case) == 0.0
    assert waste(other, case) == pytest.approx(0.5 * (48 * 0.1 + 48**2 * 0.001))


def test_the_price_of_waste_has_a_limit() -> None:
    queued = {"prefill_tokens": 10**5, "prefill_quadratic": 10**9}
    case, _ = seats_for(queued, weights=Weights(most_waste=3.0))
    assert case.waste_price == 3.0
    assert seats_for({})[0].waste_price == 0.0


def test_relief_is_what_others_gain_by_one_more_holder_and_no_more_than_is_done_twice() -> None:
    case, [holder, other] = seats_for({"matched": 3, "prefill_tokens": 10, "prefill_quadratic": 0}, {})
    assert relief(other, case) == 0.0
    popular = replace(case, popularity=2.0)
    assert relief(holder, popular) == 0.0
    assert relief(other, popular) == pytest.approx(-2.0 * (1.0 + 10 * 0.1))
    very_popular = replace(case, popularity=1000.0)
    twice = (1 + case.waste_price) * (48 * 0.1 + 48**2 * 0.001)
    assert relief(other, very_popular) == pytest.approx(-twice)


def test_interference_is_the_stall_of_each_answer_that_runs_there() -> None:
    seat, case = seat_for(decoding=4, sequences=4)
    assert interference(seat, case) == pytest.approx(0.25 * 4 * (100 * 0.1 + 100**2 * 0.001))
    assert interference(*seat_for()) == 0.0


def test_decode_step_is_the_answer_at_the_pace_after_it_has_joined() -> None:
    seat, case = seat_for(decoding=4, sequences=4, context_tokens=200)
    step_s = 1.0 + (200 + 2 * 105) * 0.01 + 6 * 0.5
    assert decode_step(seat, case) == pytest.approx(0.25 * 10 * step_s)


def test_crowding_is_what_each_answer_there_loses_for_as_many_steps_as_this_one_has() -> None:
    seat, case = seat_for(decoding=4, sequences=4, context_tokens=200)
    assert crowding(seat, case) == pytest.approx(0.25 * 10 * 4 * (2 * 105 * 0.01 + 2 * 0.5))
    assert crowding(*seat_for()) == 0.0


def test_room_is_nothing_where_the_kv_fits_or_nobody_says() -> None:
    full = LoadReport(total_blocks=20, free_blocks=0, cached_blocks=8)
    assert room(*seat_for()) == 0.0
    assert room(*seat_for(load=full)) == 0.0  # 128 tokens are to be had, 120 are wanted
    tight = LoadReport(total_blocks=20, free_blocks=0, cached_blocks=5)
    seat, case = seat_for(load=tight, decoding=3, sequences=3, context_tokens=240)
    assert seat.room_tokens == 80
    answer_s = 10 * (1.0 + 240 * 0.01 + 3 * 0.5)
    assert room(seat, case) == pytest.approx(answer_s * 40 / 240)


def test_what_was_sent_since_the_last_report_takes_room_too() -> None:
    load = LoadReport(total_blocks=20, free_blocks=20)
    assert seat_for(load=load, context_tokens=300)[0].room_tokens == 20


def test_a_slower_tier_costs_bringing_back() -> None:
    seat, case = seat_for(matched=1, host=2)
    assert fetch(seat, case) == pytest.approx(0.25 + 32 * TOKEN_BYTES * 0.001)
    assert fetch(*seat_for(matched=3)) == 0.0


def test_a_peers_prefix_is_fetched_where_that_is_allowed_and_cheaper() -> None:
    rules = PlacementRules(may_fetch=True)
    case, [_, other] = seats_for({"matched": 5}, {"matched": 1}, rules=rules)
    assert other.fetch_from is not None
    assert (other.fetch_from.address, other.ready_tokens, other.cached_tokens) == ("w0", 80, 16)
    assert fetch(other, case) == pytest.approx(ASK_S + 0.25 + 64 * TOKEN_BYTES * 0.001)
    assert other.patience_s == pytest.approx(1.0 + 64 * 0.1 + (80**2 - 16**2) * 0.001)
    assert compute(other, case) == pytest.approx(1.0 + 20 * 0.1 + (100**2 - 80**2) * 0.001)
    assert waste(other, case) == 0.0


def test_nor_where_it_is_dearer_or_forbidden_or_the_kv_differs() -> None:
    slow = Costs(default_step=STEP, default_link=LinkCosts(60.0, 0.0))
    rules = PlacementRules(may_fetch=True)
    for fields in ({}, {"rules": rules, "costs": slow}):
        _, seats = seats_for({"matched": 5}, {"matched": 1}, **fields)
        assert [seat.fetch_from for seat in seats] == [None, None]
    _, seats = seats_for({"matched": 5}, {"layout": None}, rules=rules)
    assert seats[1].ready_tokens == 0


def fetched(*workers: dict[str, Any], **fields: Any) -> tuple[int, float]:
    """What the last of them has sent to it, in tokens, and how long that takes."""
    rules = PlacementRules(may_fetch=True)
    seat = seats_for(*map(dict, workers), rules=rules, **fields)[1][-1]
    return (seat.ready_tokens if seat.fetch_from is not None else 0, seat.fetch_s)


def test_what_a_worker_has_only_been_sent_cannot_be_fetched_yet() -> None:
    assert fetched({"matched": 5, "promised": 2}, {})[0] == 48
    assert fetched({"matched": 5, "promised": 5}, {})[0] == 0


@pytest.mark.parametrize(
    ("queued", "unbegun", "ready"),
    [
        (0, 0, 80),  # whoever it was promised for has been answered
        (1, 0, 16),  # on its way from elsewhere: nobody computes it
        (40, 0, 48),  # two of the four blocks are full when this step ends
        (50, 0, 64),
        (70, 0, 64),  # 50 of them in this step; the next has room for us beside the other 20
        (110, 0, 80),  # 100 before us: all of it
        (40, 40, 16),  # in the next step, and so do we
        (70, 40, 32),  # 30 in this step, and all the rest beside us
        (90, 60, 80),  # 30 in this step, 50 in the next, 10 beside us
    ],
)
def test_of_what_is_promised_that_is_ready_which_is_computed_before_the_prompt_has_its_turn(
    queued: int, unbegun: int, ready: int
) -> None:
    """Steps of 50 tokens; a block of 16 is there, four are promised."""
    seat, _ = seat_for(matched=5, promised=4, prefill_tokens=queued, unbegun_tokens=unbegun)
    assert (seat.ready_tokens, seat.lendable_tokens, seat.host_tokens) == (ready, 16, 0)
    assert seat.cached_tokens == 80


def test_who_comes_beside_a_sibling_fetches_too() -> None:
    """The sibling's turn has come, its prefix has not: the queue is what the sibling computes after it."""
    sibling = {"matched": 4, "promised": 4, "prefill_tokens": 8}
    assert fetched({"matched": 4}, sibling)[0] == 64
    assert fetched({"matched": 4}, {**sibling, "prefill_tokens": 120})[0] == 0


def test_a_busy_holder_listens_half_a_step_later_and_an_idle_one_is_asked_first() -> None:
    """A step of 40 tokens takes 1 + 4 s, one of four answers 1 + 0.02 + 2 s."""
    moved_s = ASK_S + 0.25 + 80 * TOKEN_BYTES * 0.001
    computing = {"matched": 5, "prefill_tokens": 40}
    decoding = {"matched": 5, "decoding": 4, "sequences": 4, "context_tokens": 2}
    assert fetched(computing, {})[1] == pytest.approx(moved_s + 2.5)
    assert fetched(decoding, {})[1] == pytest.approx(moved_s + 1.51)
    assert fetched(computing, decoding, {})[1] == pytest.approx(moved_s + 1.51)
    assert fetched(computing, {"matched": 5}, {})[1] == pytest.approx(moved_s)


def test_a_fetch_must_spare_a_share_of_what_it_replaces() -> None:
    """80 tokens take 1 + 8 + 6.4 s to compute: 15.4 s, of which a quarter is 3.85."""
    for latency_s, tokens in ((10.8, 80), (11.0, 0)):
        costs = Costs(default_step=STEP, default_link=LinkCosts(latency_s, 0.001))
        assert fetched({"matched": 5}, {}, costs=costs)[0] == tokens


def test_patience_has_a_floor() -> None:
    quick = StepCosts(fixed_s=0.0, token_s=1e-3, quadratic_s=0.0, context_s=0.0, sequence_s=0.0)
    costs = Costs(default_step=quick, default_link=LinkCosts(1e-3, 1e-9))
    _, [_, other] = seats_for({"matched": 5}, {}, costs=costs, rules=PlacementRules(may_fetch=True))
    assert other.fetch_from is not None
    assert other.patience_s == LEAST_PATIENCE_S


@pytest.mark.parametrize("token_s", [inf, nan, 1e308])
def test_nothing_is_fetched_to_spare_what_cannot_be_told(token_s: float) -> None:
    """Its patience would be no number, and never run out."""
    absurd = StepCosts(fixed_s=0.0, token_s=token_s, quadratic_s=token_s, context_s=0.0, sequence_s=0.0)
    costs = Costs(default_step=absurd, default_link=LinkCosts(1e-3, 1e-9))
    assert fetched({"matched": 5}, {}, costs=costs) == (0, 0.0)


def test_a_hand_off_costs_its_messages_and_the_last_chunk() -> None:
    case, [prefill, decode] = seats_for({}, {"matched": 1})
    assert hand_off(prefill, decode, case) == pytest.approx(4 * 0.25 + 50 * TOKEN_BYTES * 0.001)


def test_or_all_that_a_slow_link_has_not_moved_meanwhile() -> None:
    slow = Costs(default_step=STEP, default_link=LinkCosts(0.0, 1.0))
    case, [prefill, decode] = seats_for({}, {"matched": 1}, costs=slow)
    computed_s = 2 * 1.0 + 100 * 0.1 + 100**2 * 0.001
    assert hand_off(prefill, decode, case) == pytest.approx(84 * TOKEN_BYTES - computed_s)


def test_a_decode_worker_that_has_prompts_to_compute_lets_answers_wait() -> None:
    case, [prefill, decode] = seats_for({}, {"prefill_tokens": 60, "prefill_quadratic": 3000})
    assert decode_queue(prefill, decode, case) == pytest.approx(2 * 1.0 + 60 * 0.1 + 3000 * 0.001)
