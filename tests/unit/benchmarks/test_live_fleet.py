"""How a trace's blocks become a prompt."""

import json

from live_fleet import BASE, body_of, spell

from atomesh.planner.simulator.workload import Arrival


def test_a_prompt_spells_its_blocks() -> None:
    first, second = 5 + 7 * BASE, 2**32 - 1

    prompt = json.loads(body_of(Arrival(0.0, 9, (first, second)), 6))["prompt"]

    assert prompt == [5, 7, 0, 0, 5, 7, 255, 255, 255]
    assert spell(first, 6) == [5, 7, 0, 0, 5, 7]
