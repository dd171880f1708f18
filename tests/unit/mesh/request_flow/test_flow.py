import pytest

from atomesh.errors import EngineError, FatalRequestError, InvalidRequestError, ServiceUnavailableError
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.mesh.request_flow.flow import FlowRules, request_flow
from atomesh.mesh.request_flow.retry import MAX_DEATHS
from atomesh.mesh.request_flow.steps import SendLeg
from atomesh.protocol.generation import (
    DecodeLeg,
    GenerationRequest,
    PrefillLeg,
    PrefixFetch,
    Timings,
    TokenDelta,
    TokenLogprobs,
)
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import Role
from atomesh.testing.flow_driver import FlowDriver

PAIR: dict[str, Role] = {"p": "prefill", "d": "decode"}
FIRST = Timings(queue_s=1.0, prefill_s=2.0)


def request(n: int = 1, max_tokens: int = 4, prompt_logprobs: int | None = None) -> GenerationRequest:
    spec = SamplingSpec(seed=1, max_tokens=max_tokens, prompt_logprobs=prompt_logprobs)
    return GenerationRequest(request_id="r", prompt_token_ids=[1, 2, 3], sampling=spec, n=n)


def begin(
    roles: dict[str, Role], asked: GenerationRequest | None = None, rules: FlowRules | None = None
) -> FlowDriver:
    driver = FlowDriver(request_flow(asked or request(), rules or FlowRules()), list(roles), dict(roles))
    driver.start()
    return driver


def delta(driver: FlowDriver, *tokens: int, choice: int = 0, **fields: object) -> TokenDelta:
    return TokenDelta(
        request_id=driver.leg.request.request_id, choice=choice, token_ids=list(tokens), **fields
    )


def first(driver: FlowDriver, *tokens: int, **fields: object) -> TokenDelta:
    return delta(driver, *tokens, timings=FIRST, cached_tokens=2, **fields)


def names(legs: list[SendLeg]) -> list[str]:
    return [leg.worker.address for leg in legs]


def is_done(driver: FlowDriver) -> bool:
    return driver.waiting is None and driver.error is None and driver.open_legs == []


def test_a_whole_answer_from_one_worker() -> None:
    driver = begin({"u": "unified"})
    driver.arrive(first(driver, 9))
    driver.arrive(delta(driver, 8, finish_reason="stop"))
    assert is_done(driver)
    assert driver.tokens() == [9, 8]
    assert [one.serving_path for one in driver.emitted] == ["unified", None]
    assert [one.leg for one in driver.sent] == [None]
    assert driver.aborted == []


@pytest.mark.parametrize("roles", [{"u": "unified"}, PAIR], ids=["unified", "pair"])
def test_who_computes_the_prompt_is_told_whom_to_ask_for_its_beginning(roles: dict[str, Role]) -> None:
    driver = FlowDriver(request_flow(request(), FlowRules()), list(roles), dict(roles), lender="x")
    driver.start()
    [leg], ticket = driver.sent, driver.tickets[-1]
    assert (ticket.request_id, ticket.prefill, ticket.decode) == ("r", "x-life", f"{next(iter(roles))}-life")
    assert leg.request.fetch == PrefixFetch(
        ticket=ticket, address="unix:/x.kv", num_tokens=32, patience_s=0.5
    )
    driver.arrive(first(driver, 9))
    if roles is PAIR:
        assert driver.sent[1].request.fetch is None
        assert driver.sent[1].leg == DecodeLeg(
            outputs={0: [9]}, ticket=driver.tickets[0], prefill_address="unix:/p.kv"
        )
    driver.arrive(delta(driver, 8, finish_reason="stop"))
    assert is_done(driver)
    assert driver.tokens() == [9, 8]


def test_another_attempt_has_a_fetch_of_its_own() -> None:
    roles: dict[str, Role] = {"u": "unified", "v": "unified"}
    driver = FlowDriver(request_flow(request(), FlowRules()), list(roles), dict(roles), lender="x")
    driver.start()
    driver.fail()
    fetches = [leg.request.fetch for leg in driver.sent]
    assert [one.ticket.request_id for one in fetches if one is not None] == ["r", "r~2"]


def test_prefill_then_decode_with_one_ticket() -> None:
    driver = begin(PAIR)
    driver.arrive(first(driver, 9))
    driver.arrive(delta(driver, 8, kv_source="transferred", timings=Timings(0.1, 0.2, 0.5), cached_tokens=3))
    driver.arrive(delta(driver, 7, finish_reason="length"))
    assert is_done(driver)
    assert driver.tokens() == [9, 8, 7]
    prefill, decode = driver.sent
    [ticket] = driver.tickets
    assert prefill.leg == PrefillLeg(ticket=ticket, decode_address="unix:/d.kv")
    assert decode.leg == DecodeLeg(outputs={0: [9]}, ticket=ticket, prefill_address="unix:/p.kv")
    assert prefill.request.request_id == decode.request.request_id == ticket.request_id == "r"
    assert driver.aborted == []
    assert [one.serving_path for one in driver.emitted] == ["prefill-decode", None, None]
    assert [one.cached_tokens for one in driver.emitted] == [2, None, None]
    assert [one.timings for one in driver.emitted] == [FIRST, Timings(1.0, 2.0, 0.5), None]


def test_what_decode_computed_again_is_said_and_prefill_lets_go() -> None:
    driver = begin(PAIR)
    driver.arrive(first(driver, 9))
    driver.arrive(delta(driver, 8, kv_source="recomputed"))
    assert [one.serving_path for one in driver.emitted] == ["prefill-decode", "recomputed"]
    assert names(driver.aborted) == ["p"]


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_that_ends_with_its_first_token_never_asks_decode(reason: str) -> None:
    driver = begin(PAIR)
    driver.arrive(first(driver, 9, finish_reason=reason))
    assert is_done(driver)
    assert names(driver.sent) == ["p"]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_one_token_needs_no_ticket(max_tokens: int) -> None:
    driver = begin(PAIR, request(max_tokens=max_tokens))
    driver.arrive(first(driver, *[9][:max_tokens], finish_reason="length"))
    assert is_done(driver)
    assert driver.tickets == []
    assert (names(driver.sent), driver.sent[0].leg) == (["p"], None)
    assert driver.emitted[0].serving_path == "prefill-decode"


def test_decode_gets_the_choices_that_are_still_open() -> None:
    driver = begin(PAIR, request(n=3))
    driver.arrive(first(driver, 9), delta(driver, 8, choice=1, finish_reason="stop"))
    assert driver.emitted == []  # so that a failure between the first tokens can still be tried again
    driver.arrive(delta(driver, 7, choice=2))
    assert isinstance(driver.leg.leg, DecodeLeg)
    assert driver.leg.leg.outputs == {0: [9], 2: [7]}
    driver.arrive(
        *(delta(driver, 5, choice=c, kv_source="transferred", finish_reason="length") for c in (0, 2))
    )
    assert is_done(driver)
    assert [driver.tokens(choice) for choice in range(3)] == [[9, 5], [8], [7, 5]]


def test_the_prompts_logprobs_are_prefills_alone() -> None:
    driver = begin(PAIR, request(prompt_logprobs=1))
    entry = TokenLogprobs(2, -0.5, 1, [(2, -0.5)])
    driver.arrive(first(driver, 9, prompt_logprobs=[None, entry, entry]))
    assert driver.leg.request.sampling.prompt_logprobs is None
    driver.arrive(delta(driver, 8, kv_source="recomputed", prompt_logprobs=[None]))
    assert [one.prompt_logprobs for one in driver.emitted] == [[None, entry, entry], None]


@pytest.mark.parametrize("error", [None, ServiceUnavailableError("draining")], ids=["lost", "draining"])
def test_before_the_first_token_the_request_is_sent_once_more_as_it_was(
    error: ServiceUnavailableError | None,
) -> None:
    driver = begin({"u": "unified", "v": "unified"})
    driver.fail(error)
    again = driver.leg
    assert (again.worker.address, again.leg, again.request.request_id) == ("v", None, "r~2")
    driver.arrive(first(driver, 9, finish_reason="length"))
    assert is_done(driver)
    assert [one.request_id for one in driver.emitted] == ["r"]
    assert driver.emitted[0].cached_tokens == 2


def test_but_only_once() -> None:
    driver = begin({"u": "unified", "v": "unified", "w": "unified"})
    driver.fail(ServiceUnavailableError("first"))
    driver.fail(ServiceUnavailableError("second"))
    assert str(driver.error) == "second"
    assert names(driver.sent) == ["u", "v"]


@pytest.mark.parametrize("error", [InvalidRequestError("bad"), EngineError("broken")])
def test_the_requests_own_errors_are_never_tried_again(error: InvalidRequestError | EngineError) -> None:
    driver = begin({"u": "unified", "v": "unified"})
    driver.fail(error)
    assert driver.error is error
    assert names(driver.sent) == ["u"]


def test_without_another_worker_the_loss_is_told_before_and_after_the_first_token() -> None:
    unbegun = begin({"u": "unified"})
    unbegun.fail()
    assert isinstance(unbegun.error, ServiceUnavailableError)
    begun = begin({"u": "unified"})
    begun.arrive(first(begun, 9))
    begun.fail()
    assert isinstance(begun.error, ServiceUnavailableError)
    assert "lost while" in str(begun.error)
    assert unbegun.error.retry_after_s == begun.error.retry_after_s == 2


def test_a_lost_prefill_worker_leaves_a_local_prefill() -> None:
    driver = begin(PAIR)
    driver.fail()
    assert (driver.leg.worker.address, driver.leg.leg) == ("d", None)
    driver.arrive(first(driver, 9, finish_reason="length"))
    assert driver.emitted[0].serving_path == "local-prefill"


REQUIRED = PlacementRules(require_disaggregation=True)


def begin_strictly(roles: dict[str, Role], asked: GenerationRequest | None = None) -> FlowDriver:
    """No worker may do both."""
    driver = FlowDriver(request_flow(asked or request(), FlowRules()), list(roles), dict(roles), REQUIRED)
    driver.start()
    return driver


def test_unless_disaggregation_is_required() -> None:
    driver = begin_strictly(PAIR)
    driver.fail()
    assert isinstance(driver.error, ServiceUnavailableError)
    assert names(driver.sent) == ["p"]


def test_after_the_first_token_the_answer_goes_on_elsewhere_from_its_tokens() -> None:
    driver = begin({"u": "unified", "v": "unified"}, request(n=2, max_tokens=5))
    driver.arrive(first(driver, 9), delta(driver, 8, choice=1))
    driver.arrive(delta(driver, 7), delta(driver, 6, choice=1, finish_reason="stop"))
    driver.fail()
    rest = driver.leg
    assert (rest.worker.address, rest.request.request_id) == ("v", "r~2")
    assert rest.leg == DecodeLeg(outputs={0: [9, 7]})
    driver.arrive(first(driver, 5, kv_source="recomputed", finish_reason="length"))
    assert is_done(driver)
    assert (driver.tokens(0), driver.tokens(1)) == ([9, 7, 5], [8, 6])
    assert [one.serving_path for one in driver.emitted] == ["unified", None, None, None, "recomputed"]
    assert driver.emitted[-1].request_id == "r"
    assert driver.emitted[-1].cached_tokens is None


def test_a_choice_without_a_token_cannot_go_on() -> None:
    driver = begin({"u": "unified", "v": "unified"}, request(n=2))
    driver.arrive(first(driver, 9))
    driver.fail()
    assert isinstance(driver.error, ServiceUnavailableError)
    assert names(driver.sent) == ["u"]


def test_a_lost_decode_worker_is_replaced_by_whoever_is_left() -> None:
    driver = begin(PAIR)
    driver.arrive(first(driver, 9))
    driver.arrive(delta(driver, 8, kv_source="transferred"))
    driver.fail()
    assert (driver.leg.worker.address, driver.leg.leg) == ("p", DecodeLeg(outputs={0: [9, 8]}))


def test_decodes_refusal_goes_elsewhere_and_prefill_lets_go() -> None:
    driver = begin({"p": "prefill", "d": "decode", "e": "decode"})
    driver.arrive(first(driver, 9))
    driver.fail(InvalidRequestError("it does not fit here"))
    assert (driver.leg.worker.address, driver.leg.leg) == ("e", DecodeLeg(outputs={0: [9]}))
    assert names(driver.aborted) == ["p"]


def test_the_last_refusal_is_the_clients() -> None:
    driver = begin(PAIR)
    driver.workers.append("d2")
    driver.roles["d2"] = "decode"
    driver.arrive(first(driver, 9))
    refused: list[str] = []
    while driver.error is None:
        refused.append(driver.leg.worker.address)
        driver.fail(ServiceUnavailableError(f"{driver.leg.worker.address} is full"))
    assert sorted(refused) == ["d", "d2", "p"]
    assert str(driver.error) == f"{refused[-1]} is full"


def test_decodes_own_failure_is_final() -> None:
    driver = begin(PAIR, rules=FlowRules(on_transfer_failure="fail"))
    driver.arrive(first(driver, 9))
    assert isinstance(driver.leg.leg, DecodeLeg)
    assert driver.leg.leg.on_failure == "fail"
    driver.fail(EngineError("the KV did not arrive"))
    assert str(driver.error) == "the KV did not arrive"


def test_a_request_touches_two_lost_workers_at_most() -> None:
    driver = begin({"u": "unified", "v": "unified", "w": "unified"})
    driver.fail()
    driver.arrive(first(driver, 9))
    driver.fail()
    assert type(driver.error) is FatalRequestError
    assert names(driver.sent) == ["u", "v"]
    assert driver.barred == [driver.sent[0].request]


def test_one_that_is_not_suspected_goes_on_until_too_many_have_died() -> None:
    driver = begin(dict.fromkeys("uvwxyz", "unified"))
    driver.arrive(first(driver, 9))
    for _ in range(MAX_DEATHS):
        driver.fail(is_suspect=False)
    assert type(driver.error) is ServiceUnavailableError
    assert names(driver.sent) == ["u", "v", "w", "x"]
    assert driver.barred == []


def test_a_frozen_source_of_kv_is_not_waited_for() -> None:
    driver = begin(PAIR)
    driver.arrive(first(driver, 9))
    assert driver.waiting is not None
    prefill = driver.waiting.source
    assert prefill is driver.sent[0]
    driver.fail(leg=prefill)
    assert names(driver.aborted) == ["d"]
    assert (driver.leg.worker.address, driver.leg.leg) == ("d", DecodeLeg(outputs={0: [9]}))
    driver.arrive(delta(driver, 8, kv_source="recomputed", finish_reason="length"))
    assert is_done(driver)
    assert driver.tokens() == [9, 8]


def test_unless_a_failed_transfer_shall_be_an_error() -> None:
    driver = begin(PAIR, rules=FlowRules(on_transfer_failure="fail"))
    driver.arrive(first(driver, 9))
    assert driver.waiting is not None
    assert driver.waiting.source is None


def test_no_worker_goes_on_alone_where_two_are_required() -> None:
    driver = begin_strictly(PAIR)
    driver.arrive(first(driver, 9))
    driver.arrive(delta(driver, 8, kv_source="transferred"))
    driver.fail()
    assert isinstance(driver.error, ServiceUnavailableError)
    assert names(driver.sent) == ["p", "d"]
    assert driver.tokens() == [9, 8]
    assert driver.open_legs == []


def test_nor_when_decode_dies_before_it_says_a_word() -> None:
    driver = begin_strictly(PAIR)
    driver.arrive(first(driver, 9))
    driver.fail()
    assert isinstance(driver.error, ServiceUnavailableError)
    assert names(driver.sent) == ["p", "d"]
    assert names(driver.aborted) == ["p"]


def test_another_decode_worker_gets_the_kv_by_a_hand_off_of_its_own() -> None:
    driver = begin_strictly({**PAIR, "e": "decode"}, request(max_tokens=9, prompt_logprobs=1))
    driver.arrive(first(driver, 9))
    lost = driver.leg.worker.address
    driver.arrive(delta(driver, 8, kv_source="transferred"))
    driver.arrive(delta(driver, 7))
    driver.fail()
    [old, new] = driver.tickets
    assert (old.request_id, new.request_id) == ("r", "r~2")
    assert (driver.leg.worker.address, driver.leg.request.request_id) == ("p", "r~2")
    assert driver.leg.request.sampling.prompt_logprobs is None
    assert isinstance(driver.leg.leg, PrefillLeg)
    assert driver.leg.leg.ticket is new
    driver.arrive(first(driver, 9))
    assert driver.leg.worker.address == ({"d", "e"} - {lost}).pop()
    assert driver.leg.leg == DecodeLeg(outputs={0: [9]}, ticket=new, prefill_address="unix:/p.kv")
    assert driver.tokens() == [9, 8, 7]
    driver.arrive(delta(driver, 8, kv_source="transferred"))
    entries = [TokenLogprobs(token, -0.5, 1, []) for token in (7, 6, 5)]
    driver.arrive(delta(driver, 7, 6, 5, logprobs=entries))
    driver.arrive(delta(driver, 4, finish_reason="length"))
    assert is_done(driver)
    assert driver.tokens() == [9, 8, 7, 6, 5, 4]
    assert driver.emitted[-2].logprobs == entries[1:]
    assert [one.serving_path for one in driver.emitted] == ["prefill-decode", None, None, "recomputed", None]
    assert {one.request_id for one in driver.emitted} == {"r"}


def test_choices_that_have_ended_are_not_heard_again() -> None:
    driver = begin_strictly({**PAIR, "e": "decode"}, request(n=2))
    driver.arrive(first(driver, 9), delta(driver, 5, choice=1, finish_reason="stop"))
    driver.fail()
    driver.arrive(first(driver, 9), delta(driver, 5, choice=1, finish_reason="stop"))
    assert isinstance(driver.leg.leg, DecodeLeg)
    assert driver.leg.leg.outputs == {0: [9]}
    driver.arrive(delta(driver, 8, kv_source="transferred", finish_reason="length"))
    assert is_done(driver)
    assert (driver.tokens(0), driver.tokens(1)) == ([9, 8], [5])


AT_PREFILL = [((6,), None), ((9,), "stop"), ((9,), "length")]
AT_DECODE = [((6,), None), ((8,), "stop"), ((8, 6), None)]


@pytest.mark.parametrize(("again", "reason"), AT_PREFILL)
def test_another_first_token_than_the_clients_is_an_error(again: tuple[int, ...], reason: str | None) -> None:
    driver = begin_strictly({**PAIR, "e": "decode"})
    driver.arrive(first(driver, 9))
    driver.fail()
    driver.arrive(first(driver, *again, finish_reason=reason))
    assert type(driver.error) is EngineError
    assert "same answer" in str(driver.error)
    assert driver.tokens() == [9]


@pytest.mark.parametrize(("again", "reason"), AT_DECODE)
def test_another_later_token_too(again: tuple[int, ...], reason: str | None) -> None:
    driver = begin_strictly({**PAIR, "e": "decode"}, request(max_tokens=9))
    driver.arrive(first(driver, 9))
    driver.arrive(delta(driver, 8, kv_source="transferred"))
    driver.arrive(delta(driver, 7))
    driver.fail()
    driver.arrive(first(driver, 9))
    driver.arrive(delta(driver, *again, finish_reason=reason))
    assert type(driver.error) is EngineError
    assert driver.tokens() == [9, 8, 7]


def test_a_prefill_worker_that_turns_the_second_hand_off_away_is_not_the_end_of_it() -> None:
    driver = begin_strictly({**PAIR, "e": "decode", "q": "prefill"})
    driver.arrive(first(driver, 9))
    driver.fail()
    [refuser] = [driver.leg.worker.address]
    driver.fail(ServiceUnavailableError("draining"))
    assert driver.leg.worker.address == ({"p", "q"} - {refuser}).pop()
    assert driver.leg.request.request_id == "r~3"


def test_a_lost_source_of_kv_is_replaced_where_two_are_required() -> None:
    driver = begin_strictly({**PAIR, "q": "prefill"})
    source = driver.leg
    driver.arrive(first(driver, 9))
    driver.fail(leg=source)
    assert names(driver.aborted) == ["d"]
    assert driver.leg.worker.address == ({"p", "q"} - {source.worker.address}).pop()
    driver.arrive(first(driver, 9))
    assert (driver.leg.worker.address, driver.leg.request.request_id) == ("d", "r~2")
