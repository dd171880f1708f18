"""What the report says of given figures."""

from placement_report import PolicyFound, Report, SeedCheck, Setting, best_other

from atomesh.planner.simulator.measures import Measures
from atomesh.planner.simulator.simulated_cluster import FleetSettings

SETTING = Setting(
    commit="0123456789",
    trace="conversations",
    num_requests=12_031,
    fleet=FleetSettings(),
    block_size=512,
    cost="llama-70b@8xh100-50%",
    load=0.9,
)


def found(policy: str, max_load: float | None, hit_rate: float) -> PolicyFound:
    return PolicyFound(policy, max_load, Measures(12_031, hit_rate, 1.25, 0.5, 9.876, 0.9512, 1.043))


def test_a_row_a_policy_in_the_order_of_the_runs() -> None:
    page = Report(SETTING, [found("kv_aware", 1.25, 0.3), found("least_work", None, 0.125)]).as_markdown()

    assert "| `kv_aware` | 1.25 | 30.0% | 1.25 | 0.50 | 9.88 | 95.1% | 1.04 |" in page
    assert "| `least_work` | – | 12.5% | 1.25 | 0.50 | 9.88 | 95.1% | 1.04 |" in page
    assert "12,031 requests, prefill only, on 8 workers of 10,000 blocks of 512 tokens" in page
    assert "95% of the requests have their first token within 5 s; all else is at load 0.9" in page


POLICIES = [
    found("kv_aware", 1.2, 0.3),
    found("least_work", 1.0, 0.1),
    found("random", 0.5, 0.1),
    found("ideal_shared_cache", 1.25, 0.35),
]


def test_the_verdict_compares_with_the_bound_and_with_the_best_of_the_others() -> None:
    page = Report(SETTING, POLICIES).as_markdown()

    assert best_other(POLICIES) == "least_work"
    assert "With seed 0: `kv_aware` bears 96% of the load of `ideal_shared_cache`" in page
    assert "1.20 times that of `least_work`, the best of the other policies, which is more than noise" in page


def test_a_lead_that_another_seed_does_not_show_is_not_called_clear() -> None:
    other = SeedCheck(7, {"kv_aware": 1.04, "least_work": 1.0, "ideal_shared_cache": 1.04})

    page = Report(SETTING, POLICIES, [other]).as_markdown()

    assert "With seed 0, 7: `kv_aware` bears 96%, 100% of the load" in page
    assert "1.20, 1.04 times that of `least_work`" in page
    assert "which is not clearly more than noise" in page


def test_without_loads_there_is_no_verdict() -> None:
    page = Report(
        SETTING, [found("kv_aware", None, 0.3), found("ideal_shared_cache", 1.25, 0.3)]
    ).as_markdown()

    assert "bears" not in page


def test_the_json_has_all_figures_by_policy() -> None:
    document = Report(SETTING, [found("session", 0.75, 0.2)]).as_json()

    assert document["policies"] == [
        {
            "policy": "session",
            "max_load": 0.75,
            "num_requests": 12_031,
            "hit_rate": 0.2,
            "ttft_mean_s": 1.25,
            "ttft_p50_s": 0.5,
            "ttft_p99_s": 9.876,
            "within_limit": 0.9512,
            "imbalance": 1.043,
        }
    ]
    assert document["setting"]["fleet"]["num_workers"] == 8
