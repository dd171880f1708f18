import pytest

from atomesh.mesh.dispatch.explanations import MAX_ATTEMPTS, Account, ExplanationStore
from atomesh.mesh.dispatch.output_length import OutputLength
from atomesh.mesh.gateway.explain_page import describe_accounts
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.explanation import Explanation
from atomesh.mesh.placement.place import place
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.mesh.placement.policies.registry import PolicySet
from atomesh.observability.placement_metrics import PlacementMetrics
from atomesh.protocol.generation import Timings, TokenDelta
from atomesh.testing.mesh_snapshots import worker_snapshot
from atomesh.testing.placed import placement_inputs


class Heard:
    def __init__(self) -> None:
        self.said: list[tuple[str, float, float]] = []

    def ttft(self, predicted_s: float, measured_s: float) -> None:
        self.said.append(("ttft", predicted_s, measured_s))

    def transfer(self, predicted_s: float, measured_s: float) -> None:
        self.said.append(("transfer", predicted_s, measured_s))

    def fetch(self, predicted_s: float, measured_s: float) -> None:
        self.said.append(("fetch", predicted_s, measured_s))

    def cached(self, predicted: int, measured: int) -> None:
        self.said.append(("cached", predicted, measured))


def explanation() -> Explanation:
    workers = (
        worker_snapshot("p", "prefill"),
        worker_snapshot("d", "decode"),
        worker_snapshot("x", state="lost"),
    )
    return place(placement_inputs(*workers), PolicySet()).explanation


def answered(account: Account, why: Explanation) -> None:
    account.decided(why, 10.0, is_rest=False)
    first = TokenDelta(
        request_id="r",
        token_ids=[1],
        cached_tokens=32,
        timings=Timings(0.0, 0.1),
        serving_path="prefill-decode",
    )
    account.saw([first], 10.5)
    account.saw([TokenDelta(request_id="r", token_ids=[2], timings=Timings(0.0, 0.1, 0.25))], 11.0)


def test_what_came_of_a_decision_is_told_beside_what_was_expected() -> None:
    heard, why = Heard(), explanation()
    account = ExplanationStore(heard).open("r", "m", choices=1)
    answered(account, why)
    assert account.measured.ttft_s == 0.5
    assert account.measured.transfer_s == 0.25
    assert (account.measured.cached_tokens, account.measured.output_tokens) == (32, 2)
    assert account.measured.path == "prefill-decode"
    predicted = why.predicted
    assert heard.said == [
        ("ttft", predicted.ttft_s, 0.5),
        ("cached", 0, 32),
        ("transfer", predicted.transfer_s, 0.25),
    ]


def test_what_a_prefix_was_waited_for_is_told_apart_from_what_decode_waited_for() -> None:
    heard = Heard()
    workers = worker_snapshot("p", "prefill"), worker_snapshot("d", "decode")
    inputs = placement_inputs(
        *workers, matches={"d-life": MatchedBlocks(6)}, rules=PlacementRules(may_fetch=True)
    )
    why = place(inputs, PolicySet()).explanation
    assert (why.chosen.fetch_from, why.chosen.cached_tokens) == ("d", 96)
    assert why.predicted.fetch_s == why.chosen.terms["fetch"] > 0.0
    account = ExplanationStore(heard).open("r", "m", choices=1)
    account.decided(why, 10.0, is_rest=False)
    account.saw([TokenDelta(request_id="r", token_ids=[1], timings=Timings(0.0, 0.1, 0.125))], 10.5)
    account.saw([TokenDelta(request_id="r", token_ids=[2], timings=Timings(0.0, 0.1, 0.375))], 11.0)
    assert (account.measured.fetch_s, account.measured.transfer_s) == (0.125, 0.25)
    assert ("fetch", why.predicted.fetch_s, 0.125) in heard.said
    assert heard.said[-1] == ("transfer", why.predicted.transfer_s, 0.25)


def test_a_second_attempt_is_measured_from_its_own_decision() -> None:
    heard, why = Heard(), explanation()
    account = ExplanationStore(heard).open("r", "m", choices=1)
    account.decided(why, 10.0, is_rest=False)
    account.decided(why, 12.0, is_rest=False)
    account.saw([TokenDelta(request_id="r", token_ids=[1])], 12.25)
    assert [attempt.at_s for attempt in account.attempts] == [0.0, 2.0]
    assert account.measured.ttft_s == 0.25
    for _ in range(20):
        account.decided(why, 13.0, is_rest=True)
    assert len(account.attempts) == MAX_ATTEMPTS


def test_the_page_has_the_chosen_the_runner_up_and_the_rejected() -> None:
    store = ExplanationStore()
    answered(store.open("cmpl-1-0", "m", choices=1), explanation())
    store.open("cmpl-1-1", "m", choices=1)
    page = describe_accounts("cmpl-1", store.of_answer("cmpl-1"))
    assert (page["id"], page["model"], len(page["requests"])) == ("cmpl-1", "m", 2)
    [attempt] = page["requests"][0]["attempts"]
    assert (attempt["chosen"]["prefill"], attempt["chosen"]["decode"]) == ("p", "d")
    assert attempt["runner_up"] is None
    assert attempt["rejected"] == [{"worker": "x", "reason": "lost"}]
    assert sum(attempt["chosen"]["terms"].values()) == pytest.approx(attempt["chosen"]["total_s"])
    assert page["requests"][0]["measured"]["ttft_s"] == 0.5
    assert page["requests"][1]["attempts"] == []


def test_the_store_keeps_the_last_ones_and_finds_an_answers_prompts() -> None:
    store = ExplanationStore(max_accounts=3)
    for n in range(5):
        store.open(f"cmpl-{n}-0", "m", choices=1)
    assert len(store) == 3
    assert store.get("cmpl-1-0") is None
    assert [one.request_id for one in store.of_answer("cmpl-4")] == ["cmpl-4-0"]
    assert [one.request_id for one in store.of_answer("cmpl-4-0")] == ["cmpl-4-0"]
    assert store.of_answer("cmpl-1") == []


def test_errors_are_metrics() -> None:
    metrics = PlacementMetrics()
    metrics.ttft(0.5, 0.25)
    metrics.transfer(0.0, 0.02)
    metrics.fetch(0.5, 0.25)
    metrics.cached(64, 32)
    found = {
        sample.name + sample.labels.get("le", ""): sample.value
        for collector in metrics.collectors
        for family in collector.collect()
        for sample in family.samples
    }
    assert found["atomesh_placement_ttft_error_seconds_bucket-0.3"] == 0
    assert found["atomesh_placement_ttft_error_seconds_bucket-0.1"] == 1
    assert found["atomesh_placement_fetch_error_seconds_bucket-0.3"] == 0
    assert found["atomesh_placement_fetch_error_seconds_bucket-0.1"] == 1
    assert found["atomesh_placement_ttft_predicted_seconds_total"] == 0.5
    assert found["atomesh_placement_ttft_measured_seconds_total"] == 0.25
    assert found["atomesh_placement_transfer_error_seconds_bucket0.01"] == 0
    assert found["atomesh_placement_transfer_error_seconds_bucket0.03"] == 1
    assert found["atomesh_placement_cached_tokens_predicted_total"] == 64
    assert found["atomesh_placement_cached_tokens_measured_total"] == 32


def test_answers_are_expected_to_be_as_long_as_they_were() -> None:
    lengths = OutputLength()
    assert (lengths.expected(1000), lengths.expected(5), lengths.expected(0)) == (128, 5, 1)
    for _ in range(1000):
        lengths.ended(40)
    assert lengths.expected(1000) == 40
