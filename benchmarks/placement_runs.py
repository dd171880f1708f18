"""Runs of the simulator, one or several at a time: the highest load and the measures by policy and seed."""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import TypeVar

from placement_traffic import Traffic

from atomesh.planner.simulator.measures import Measures
from atomesh.planner.simulator.simulated_cluster import FleetSettings, find_policy_load, simulate
from atomesh.planner.simulator.workload import Workload

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LoadJob:
    """What is the highest load? `guess` is another seed's answer."""

    policy: str
    traffic: Traffic
    fleet: FleetSettings
    resolution: float
    guess: float | None = None

    def run(self) -> float:
        workload = _draw(self.traffic, self.fleet.seed)
        return find_policy_load(self.fleet, workload, self.policy, self.resolution, self.guess)


@dataclass(frozen=True, slots=True)
class MeasureJob:
    policy: str
    traffic: Traffic
    fleet: FleetSettings
    load: float

    def run(self) -> Measures:
        workload = _draw(self.traffic, self.fleet.seed)
        return simulate(
            self.fleet, workload.at_load(self.load, self.fleet.costs, self.fleet.num_workers), self.policy
        )


@dataclass(frozen=True, slots=True)
class Runs:
    """Of one fleet under one traffic, the same for all policies; with `executor`, several at a time."""

    traffic: Traffic
    fleet: FleetSettings
    seeds: Sequence[int]
    resolution: float
    executor: Executor | None = None

    def find_loads(self, policies: Sequence[str]) -> dict[str, list[float]]:
        """The highest load of each policy under each seed; the first seed's is the guess for the others."""
        first, *others = self.seeds
        found = self._map(run_load, [self._load_job(policy, first) for policy in policies])
        guesses = dict(zip(policies, found, strict=True))
        note(", ".join(f"{policy} {load:.3f}" for policy, load in guesses.items()))
        jobs = [self._load_job(policy, seed, guesses[policy]) for policy in policies for seed in others]
        rest = iter(self._map(run_load, jobs))
        return {policy: [guesses[policy], *(next(rest) for _ in others)] for policy in policies}

    def measure(self, policies: Sequence[str], load: float) -> dict[str, list[Measures]]:
        """Of each policy under each seed, at one load."""
        jobs = [
            MeasureJob(policy, self.traffic, replace(self.fleet, seed=seed), load)
            for policy in policies
            for seed in self.seeds
        ]
        found = iter(self._map(run_measure, jobs))
        note(f"measured at load {load:g}")
        return {policy: [next(found) for _ in self.seeds] for policy in policies}

    def _load_job(self, policy: str, seed: int, guess: float | None = None) -> LoadJob:
        return LoadJob(policy, self.traffic, replace(self.fleet, seed=seed), self.resolution, guess)

    def _map(self, function: Callable[[J], R], jobs: Iterable[J]) -> list[R]:
        return list(map(function, jobs) if self.executor is None else self.executor.map(function, jobs))


def run_load(job: LoadJob) -> float:
    return job.run()


def run_measure(job: MeasureJob) -> Measures:
    return job.run()


def mean_of(measures: Sequence[Measures]) -> Measures:
    """Of each measure, over the seeds."""

    def mean(name: str) -> float:
        return fmean(getattr(one, name) for one in measures)

    return Measures(
        num_requests=measures[0].num_requests,
        hit_rate=mean("hit_rate"),
        ttft_mean_s=mean("ttft_mean_s"),
        ttft_p50_s=mean("ttft_p50_s"),
        ttft_p99_s=mean("ttft_p99_s"),
        within_limit=mean("within_limit"),
        imbalance=mean("imbalance"),
    )


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@lru_cache(maxsize=8)
def _draw(traffic: Traffic, seed: int) -> Workload:
    return traffic.draw(seed)
