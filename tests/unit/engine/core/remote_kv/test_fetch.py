"""A prefix from another worker's cache, message by message: it saves work, and costs at most patience."""

from collections import Counter
from math import inf, nan

import pytest
from msgspec.structs import replace

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.kv_handoff import Fetch
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.prefix_loans import PATIENCE_S, ask, fetch_from_decode, fetch_from_prefill, warm
from atomesh.testing.scripted_engine import ScriptedEngine, scripted_request
from atomesh.testing.simulated_pair import PULL, PULL_REPLY, SimulatedPair, is_idle

BLOCK = 4
SPEC = SamplingSpec(seed=0, max_tokens=6)


def config(**overrides: int) -> SchedulerConfig:
    sizes = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
        "block_size": BLOCK,
        "num_blocks": 32,
    }
    return SchedulerConfig(**{**sizes, **overrides})


@pytest.fixture
def pair() -> SimulatedPair:
    return SimulatedPair(config(), config())


def request_of(length: int = 22, name: str = "a", **fields: object) -> GenerationRequest:
    values = {"sampling": SPEC, **fields}
    return scripted_request(name, list(range(length)), **values)


def outcomes(worker: ScriptedEngine) -> Counter[str]:
    return worker.scheduler.remote_kv.transfers


def computed(worker: ScriptedEngine) -> list[tuple[int, int]]:
    """(start, number of tokens) of all that was computed."""
    return [(one.start, len(one.token_ids)) for batch in worker.executor.batches for one in batch.sequences]


def assert_answered(pair: SimulatedPair, request: GenerationRequest) -> None:
    """By the decode worker, with the tokens of a worker that knows of no other; and nothing is left."""
    pair.run()
    while pair.decode.engine.has_work():
        pair.step(pair.decode)
        pair.run()
    for choice in range(request.n):
        wanted = pair.decode.solo_answer(request, choice)
        assert pair.decode.answers.tokens[request.request_id, choice] == wanted
    assert is_idle(pair.prefill)
    assert is_idle(pair.decode)


def assert_recomputed(pair: SimulatedPair, request: GenerationRequest, outcome: str) -> None:
    assert_answered(pair, request)
    assert computed(pair.decode)[0] == (0, len(request.prompt_token_ids))
    assert pair.decode.answers.first[request.request_id].cached_tokens == 0
    assert outcomes(pair.decode) == {f"fetched_{outcome}": 1}


def test_what_another_holds_is_not_computed_again(pair: SimulatedPair) -> None:
    request = request_of(22)
    warm(pair.prefill, request)
    ask(pair, request, 20)
    assert pair.decode.engine.take_stock().states["reserved"] == 5
    assert not pair.decode.engine.has_work()
    pair.links.advance(PULL)
    assert pair.prefill.engine.take_stock().owners == {"loan 1": 5}
    pair.decode.clock.advance(0.5)
    pair.drain(PULL_REPLY, PULL)
    assert is_idle(pair.prefill)
    assert_answered(pair, request)
    assert computed(pair.decode)[0] == (20, 2)
    first = pair.decode.answers.first["a"]
    assert (first.cached_tokens, first.kv_source) == (20, None)
    assert first.timings is not None
    assert (first.timings.queue_s, first.timings.transfer_s) == (0.0, 0.5)
    assert outcomes(pair.decode) == {"fetched_complete": 1}
    assert outcomes(pair.prefill) == {"lent_complete": 1}


def test_only_what_is_missing_is_asked_for_and_nothing_when_all_is_there(pair: SimulatedPair) -> None:
    request = request_of(22)
    warm(pair.prefill, request)
    warm(pair.decode, request_of(10, "b"))  # two of its blocks
    ask(pair, request, 20)
    assert pair.decode.engine.take_stock().states["reserved"] == 3
    assert_answered(pair, request)
    again = request_of(22, "c")
    ask(pair, again, 20)
    assert pair.links.routes == []
    assert_answered(pair, again)
    assert outcomes(pair.decode) == {"fetched_complete": 1, "fetched_not_needed": 1}


def test_blocks_that_are_gone_are_refused_at_once(pair: SimulatedPair) -> None:
    request = request_of()
    warm(pair.prefill, request)
    pair.prefill.engine.reset_prefix_cache()
    ask(pair, request, 20)
    pair.drain(PULL, PULL_REPLY)
    assert pair.decode.engine.has_work()  # without waiting for its patience
    assert_recomputed(pair, request, "refused_gone")
    assert outcomes(pair.prefill) == {"lent_refused_gone": 1}


def test_one_block_that_is_gone_is_as_good_as_all(pair: SimulatedPair) -> None:
    request = request_of(22)
    warm(pair.prefill, request_of(14, "shorter"))
    ask(pair, request, 20)
    assert_recomputed(pair, request, "refused_gone")


def test_a_lender_keeps_what_its_own_requests_need() -> None:
    pair = SimulatedPair(config(num_blocks=8), config(), watermark=0.5)
    request = request_of(22)
    warm(pair.prefill, request)
    ask(pair, request, 20)  # five of eight: three would be left, of four that must
    assert_recomputed(pair, request, "refused_full")


def test_the_lender_dies_in_the_push(pair: SimulatedPair) -> None:
    request = request_of()
    warm(pair.prefill, request)
    ask(pair, request, 20)
    pair.links.advance(PULL)
    pair.links.cut(PULL)
    assert pair.decode.engine.take_stock().states["quarantined"] == 5
    assert_recomputed(pair, request, "peer_lost")
    assert outcomes(pair.prefill) == {"lent_failed": 1}


@pytest.mark.parametrize(("fault", "outcome"), [("lost", "late"), ("damaged", "damaged")])
def test_a_push_that_fails(pair: SimulatedPair, fault: str, outcome: str) -> None:
    request = request_of()
    warm(pair.prefill, request)
    ask(pair, request, 20)
    pair.links.advance(PULL)
    pair.links.advance(PULL_REPLY, fault=fault)
    assert_recomputed(pair, request, outcome)


def test_a_lender_that_says_nothing_costs_patience_and_no_more(pair: SimulatedPair) -> None:
    request = request_of()
    warm(pair.prefill, request)
    ask(pair, request, 20)
    pair.links.lose(PULL)
    assert pair.decode.engine.next_deadline() == PATIENCE_S
    pair.advance_clock(PATIENCE_S - 0.01)
    assert not pair.decode.engine.has_work()
    pair.advance_clock(0.01)
    assert pair.decode.engine.has_work()
    assert_recomputed(pair, request, "late")


def test_others_run_meanwhile(pair: SimulatedPair) -> None:
    request = request_of()
    warm(pair.prefill, request)
    ask(pair, request, 20)
    other = request_of(9, "other")
    pair.decode.engine.add(other)
    pair.decode.run()
    assert pair.decode.answers.tokens["other", 0] == pair.decode.solo_answer(other)
    assert_answered(pair, request)


def test_the_client_leaves_while_blocks_come(pair: SimulatedPair) -> None:
    request = request_of()
    warm(pair.prefill, request)
    ask(pair, request, 20)
    pair.links.advance(PULL)
    pair.decode.engine.abort("a")
    pair.links.flush()
    assert pair.decode.engine.take_stock().states["quarantined"] == 5
    pair.run()
    assert outcomes(pair.decode) == {"fetched_aborted": 1}
    assert ("a", 0) not in pair.decode.answers.tokens
    assert is_idle(pair.prefill)


def test_the_client_leaves_before_its_turn(pair: SimulatedPair) -> None:
    request = request_of()
    warm(pair.prefill, request)
    pair.decode.engine.add(fetch_from_prefill(pair, request, 20))
    pair.decode.engine.abort("a")
    pair.run()
    assert pair.links.routes == []
    assert outcomes(pair.decode) == {}


def test_a_running_answer_that_lacks_a_block_ends_the_fetch() -> None:
    """Of ten blocks the answer comes to need seven, while four are promised to the lender."""
    pair = SimulatedPair(config(), config(num_blocks=10))
    running = scripted_request("r", list(range(100, 116)), SamplingSpec(seed=0, max_tokens=12))
    request = request_of(17)
    warm(pair.prefill, request)
    pair.decode.engine.add(running)
    pair.decode.engine.add(fetch_from_prefill(pair, request, 16))
    while not outcomes(pair.decode):
        pair.step(pair.decode)
    assert outcomes(pair.decode) == {"fetched_yielded": 1}
    assert_answered(pair, request)
    assert pair.decode.answers.tokens["r", 0] == pair.decode.solo_answer(running)


def test_a_prompt_of_several_choices_is_fetched_once(pair: SimulatedPair) -> None:
    request = request_of(22, n=3)
    warm(pair.prefill, request_of(22, "before"))
    ask(pair, request, 20)
    assert_answered(pair, request)
    assert computed(pair.decode)[0] == (20, 2)


def test_a_prompt_whose_logprobs_are_wanted_is_computed(pair: SimulatedPair) -> None:
    spec = replace(SPEC, prompt_logprobs=0)
    request = request_of(22, sampling=spec)
    warm(pair.prefill, request_of(22))
    ask(pair, request, 20)
    assert pair.links.routes == []
    assert_answered(pair, request)


def test_another_tenants_prefix_is_not_there_for_us(pair: SimulatedPair) -> None:
    warm(pair.prefill, request_of(22, "theirs", cache_salt="theirs"))
    request = request_of(22, cache_salt="ours")
    ask(pair, request, 20)
    assert_recomputed(pair, request, "refused_gone")


def test_prefill_fetches_what_decode_holds_and_hands_all_of_it_over(pair: SimulatedPair) -> None:
    """The second turn of a conversation: decode has the first answer, prefill has not."""
    longer = list(range(22)) + [7] * 9
    warm(pair.decode, scripted_request("first turn", longer, SPEC))
    request = scripted_request("a", [*longer, 1, 2, 3], SPEC)
    handed_off = pair.submit(fetch_from_decode(pair, request, 28))
    pair.run()
    assert handed_off.tokens[0] == pair.prefill.solo_answer(request)
    assert computed(pair.prefill) == [(28, 6)]
    assert handed_off.sources == {0: "transferred"}
    assert outcomes(pair.prefill)["fetched_complete"] == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"mac": b"no"}, "ticket_forged"), ({"decode": "another"}, "ticket_forged")],
)
def test_a_fetch_without_a_good_ticket_is_not_made(
    pair: SimulatedPair, changes: dict[str, object], reason: str
) -> None:
    request = request_of()
    warm(pair.prefill, request)
    ticket = replace(pair.ticket("a", 1), **changes)
    pair.decode.engine.add(fetch_from_prefill(pair, request, 20, ticket))
    assert_answered(pair, request)
    assert pair.decode.scheduler.remote_kv.refusals == {reason: 1}
    assert pair.links.routes == []


GRANT = b"g" * 16
HASH = b"h" * 16


@pytest.mark.parametrize(
    ("message", "incarnation", "reason"),
    [
        ({"first": -1}, "d", "fetch_malformed"),
        ({"block_hashes": []}, "d", "fetch_malformed"),
        ({"block_hashes": [HASH] * 33}, "d", "fetch_malformed"),
        ({"block_hashes": [b"short"]}, "d", "fetch_malformed"),
        ({"grant": b"short"}, "d", "fetch_malformed"),
        ({}, "stranger", "ticket_peer"),
    ],
)
def test_strange_fetches_are_refused_and_hold_nothing(
    pair: SimulatedPair, message: dict[str, object], incarnation: str, reason: str
) -> None:
    remote_kv = pair.prefill.scheduler.remote_kv
    fields = {"first": 0, "grant": GRANT, "block_hashes": [HASH], **message}
    remote_kv.heard("caller", Fetch(ticket=pair.ticket("a", 1), **fields), 0.0, incarnation)
    assert remote_kv.refusals == {reason: 1}
    assert pair.prefill.engine.take_stock().owners == {}


def test_a_ticket_lends_once(pair: SimulatedPair) -> None:
    request = request_of()
    warm(pair.prefill, request)
    ask(pair, request, 20)
    message = pair.links.lose(PULL)
    assert isinstance(message, Fetch)
    remote_kv = pair.prefill.scheduler.remote_kv
    for _ in range(2):
        remote_kv.heard("caller", message, 0.0, "d")
    assert remote_kv.refusals == {"ticket_replayed": 1}
    assert pair.prefill.engine.take_stock().owners == {"loan 1": 5}
    remote_kv.peer_lost("caller", "gone", 0.0)
    pair.links.flush()
    assert is_idle(pair.prefill)


@pytest.mark.parametrize(
    ("patience_s", "waited_s"),
    [(nan, 0.1), (-inf, 0.1), (0.0, 0.1), (2.5, 2.5), (1e308, 10.0), (inf, 10.0)],
    ids=str,
)
def test_patience_is_a_number_within_bounds(pair: SimulatedPair, patience_s: float, waited_s: float) -> None:
    """Whatever the gateway says: a request whose lender never hears of it is answered."""
    request = request_of(22)
    warm(pair.prefill, request)
    fetching = fetch_from_prefill(pair, request, 20)
    fetch = fetching.fetch
    assert fetch is not None
    pair.decode.engine.add(replace(fetching, fetch=replace(fetch, patience_s=patience_s)))
    pair.step(pair.decode)
    assert pair.decode.engine.next_deadline() == pytest.approx(waited_s)
    pair.links.lose(PULL)
    pair.advance_clock(waited_s)
    assert outcomes(pair.decode) == {"fetched_late": 1}
    assert_recomputed(pair, request, "late")
