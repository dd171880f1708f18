"""FAULTS.md E1 and E2: the production placement in front of workers that are formulas."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from atomesh.mesh.placement.policies.registry import POLICIES
from atomesh.testing.analytic_cluster import AnalyticCluster, Prompt, Served

WORKERS = ("a", "b", "c", "d")


def arrivals(rate: float, count: int, seed: int = 7) -> Iterator[tuple[float, random.Random]]:
    rng = random.Random(seed)
    now = 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        yield now, rng


def chain(*names: object) -> tuple[bytes, ...]:
    """Blocks, each named after all before it."""
    return tuple(repr(names[: depth + 1]).encode().ljust(16) for depth in range(len(names)))


def hot_prefix(rate: float = 60.0, count: int = 1500) -> Iterator[Prompt]:
    """Nine of ten prompts share 30 of their 32 blocks; the others share nothing."""
    for number, (at_s, rng) in enumerate(arrivals(rate, count)):
        is_hot = rng.random() < 0.9
        shared = [("hot", depth) for depth in range(30)] if is_hot else [(number, d) for d in range(30)]
        yield Prompt(at_s, chain(*shared, (number, 30), (number, 31)))


def imbalance(served: list[Served]) -> float:
    """The busiest worker's mean number in flight over the mean of all."""
    in_flight = Counter[str]()
    for one in served:
        in_flight.update(one.in_flight)
    return max(in_flight.values()) * len(in_flight) / sum(in_flight.values())


@pytest.mark.parametrize("rate", [20.0, 60.0, 90.0])
def test_e1_a_hot_prefix_is_used_everywhere_and_crowds_nobody(rate: float) -> None:
    cluster = AnalyticCluster(WORKERS, "kv_aware")
    for prompt in hot_prefix(rate):
        cluster.serve(prompt)
    hits = sum(one.hit for one in cluster.served)
    assert hits >= 0.8 * sum(one.best for one in cluster.served)
    assert imbalance(cluster.served) <= 1.5


def test_e1_would_see_a_crowd() -> None:
    """A policy by affinity alone has the hits, but one worker gets it all."""
    cluster = AnalyticCluster(WORKERS, "cache_aware")
    for prompt in hot_prefix(20.0):
        cluster.serve(prompt)
    assert imbalance(cluster.served) > 2.0


@pytest.mark.parametrize("policy", ["kv_aware", "least_work"])
def test_e2_equal_cold_prompts_are_shared_out_evenly(policy: str) -> None:
    cluster = AnalyticCluster(WORKERS, policy)
    for number, (at_s, _) in enumerate(arrivals(25.0, 200)):
        cluster.serve(Prompt(at_s, chain(*[(number, depth) for depth in range(32)])))
    counts = Counter(one.worker for one in cluster.served)
    assert all(40 <= counts[name] <= 60 for name in WORKERS), counts


@pytest.mark.parametrize("policy", ["kv_aware", "least_work"])
def test_e2_a_new_worker_gets_its_share_and_no_flood(policy: str) -> None:
    cluster = AnalyticCluster(WORKERS[:3], policy)
    for number, (at_s, _) in enumerate(arrivals(25.0, 600)):
        if number == 200:
            cluster.add("d")
            joined_at = cluster.now
        cluster.serve(Prompt(at_s, chain(*[(number, depth) for depth in range(32)])))
    assert cluster.now - joined_at <= 30.0
    later = Counter(one.worker for one in cluster.served[200:])
    assert 50 <= later["d"] <= 200, later
    first = Counter(one.worker for one in cluster.served[200:240])
    assert first["d"] <= 20, first


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_everybody(policy: str) -> None:
    cluster = AnalyticCluster(WORKERS, policy)
    for prompt in hot_prefix(count=200):
        cluster.serve(prompt)
    assert len(cluster.served) == 200
    assert {one.worker for one in cluster.served} <= set(WORKERS)
