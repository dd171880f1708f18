"""What the report says of given figures."""

from placement_report import Report, Setting

from atomesh.planner.simulator.measures import Measures
from atomesh.planner.simulator.simulated_cluster import FleetSettings

SETTING = Setting(
    commit="0123456789",
    trace="conversations",
    num_requests=12_031,
    fleet=FleetSettings(),
    block_size=512,
    cost="llama-70b@8xh100-50%",
    seeds=(0, 1, 2),
    resolution=0.005,
)


def measures(ttft_s: float, hit_rate: float = 0.3) -> Measures:
    return Measures(12_031, hit_rate, ttft_s, ttft_s / 2, ttft_s * 8, 0.9512, 1.043)


LOADS = {
    "kv_aware": [1.2, 1.21, 1.19],
    "least_work": [1.0, 1.0, 1.0],
    "random": [1.1, 1.3, 1.2],
    "ideal_shared_cache": [1.25, 1.25, 1.25],
}


def test_a_row_a_policy_with_its_lead_under_the_same_seeds() -> None:
    page = Report(SETTING, LOADS, {}).as_markdown()

    assert "| `kv_aware` | 1.200 ± 0.025 | – | – |" in page
    assert "| `least_work` | 1.000 ± 0.000 | 1.200 ± 0.025 | ahead |" in page
    assert "| `random` | 1.200 ± 0.248 | 1.004 ± 0.201 | not told apart |" in page
    assert "12,031 requests, prefill only, on 8 workers of 10,000 blocks of 512 tokens" in page
    assert "means over 3 seeds" in page


def test_the_verdict_names_those_that_it_is_not_ahead_of() -> None:
    page = Report(SETTING, LOADS, {}).as_markdown()

    assert "`kv_aware` bears 0.960 ± 0.020 of the load of `ideal_shared_cache`" in page
    assert "where 0.95 is wanted: not shown" in page
    assert "It is ahead of all but `random` by more than noise" in page


def test_a_share_of_the_bound_is_kept_when_all_of_the_interval_keeps_it() -> None:
    loads = LOADS | {"ideal_shared_cache": [1.22, 1.23, 1.21], "random": [0.5, 0.5, 0.5]}

    page = Report(SETTING, loads, {}).as_markdown()

    assert "bears 0.984 ± 0.000 of the load" in page
    assert "where 0.95 is wanted: kept" in page
    assert "It is ahead of every other policy by more than noise" in page


def test_times_are_shown_at_each_load_with_their_ratio_to_ours() -> None:
    at_load = {
        "kv_aware": [measures(1.0), measures(2.0), measures(3.0)],
        "random": [measures(1.5), measures(3.0), measures(4.5)],
    }

    page = Report(SETTING, {}, {1.1: at_load}).as_markdown()

    assert "At load 1.1, the same for all:" in page
    assert "| `kv_aware` | 30.0% | 2.00 | 1.00 | 16.00 | 95.1% | 1.04 | – | – | – |" in page
    ratios = "1.500 ± 0.000 | 1.500 ± 0.000 | 1.500 ± 0.000"
    assert f"| `random` | 30.0% | 3.00 | 1.50 | 24.00 | 95.1% | 1.04 | {ratios} |" in page
    assert "bears" not in page


def test_a_policy_that_bears_nothing_has_no_ratio() -> None:
    page = Report(SETTING, LOADS | {"session": [0.0, 0.0, 0.0]}, {}).as_markdown()

    assert "| `session` | 0.000 ± 0.000 | – | – |" in page


def test_the_json_has_loads_by_seed_and_means_by_policy() -> None:
    document = Report(SETTING, LOADS, {1.0: {"session": [measures(1.0), measures(2.0)]}}).as_json()

    assert document["max_loads"] == LOADS
    assert document["leads"]["least_work"]["verdict"] == "ahead"
    assert document["at_load"] == [
        {
            "load": 1.0,
            "policy": "session",
            "num_requests": 12_031,
            "hit_rate": 0.3,
            "ttft_mean_s": 1.5,
            "ttft_p50_s": 0.75,
            "ttft_p99_s": 12.0,
            "within_limit": 0.9512,
            "imbalance": 1.043,
        }
    ]
    assert document["setting"]["fleet"]["num_workers"] == 8
