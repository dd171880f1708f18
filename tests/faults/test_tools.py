"""FAULTS D1 and A8 for tool calls: whenever a decode worker dies, the calls are U's, and they validate."""

import json
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.letters_server import make_client
from atomesh.testing.pd_bench import PDBench

WORDS = ["north", "east", "south", "west"]
ROUTE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {"enum": WORDS}, "minItems": 8, "maxItems": 12},
        "speed": {"type": "integer", "minimum": 1, "maximum": 999},
    },
    "required": ["steps", "speed"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "route", "parameters": ROUTE}}]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "two": {"temperature": 0.9, "seed": 78, "n": 2},
}


def asked(kind: str, salt: list[int]) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Which way? {salt}"}]
    return {
        "model": "",
        "messages": messages,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 400,
        **KINDS[kind],
    }


def whole(bench: PDBench, fields: dict[str, Any]) -> dict[int, tuple[str, str, str]]:
    """Each choice's function, arguments and finish reason."""
    with make_client(bench.served.url) as client:
        choices = client.chat.completions.create(**fields).choices
    calls = {
        choice.index: (choice.message.tool_calls[0].function, choice.finish_reason) for choice in choices
    }
    return {index: (call.name, call.arguments, reason) for index, (call, reason) in calls.items()}


def killed_amid(bench: PDBench, fields: dict[str, Any], at: int) -> dict[int, tuple[str, str, str]]:
    """The same, streamed, when the decode worker was killed after so many chunks with arguments."""
    bench.arm("decode", "step_delay", 400, 0.02)
    told: dict[int, list[str]] = {}
    num_deltas = 0
    with (
        make_client(bench.served.url) as client,
        closing(client.chat.completions.create(**fields, stream=True)) as chunks,
    ):
        for chunk in chunks:
            for choice in chunk.choices:
                call = told.setdefault(choice.index, ["", "", ""])
                call[2] = choice.finish_reason or call[2]
                for delta in choice.delta.tool_calls or []:
                    call[0] += delta.function.name or ""
                    call[1] += delta.function.arguments or ""
                    num_deltas += 1
            if num_deltas >= at:
                at = 10_000
                [worker] = [one for one in bench.workers("decode") if one["in_flight"]]
                bench.end(worker)
    return {index: (name, arguments, reason) for index, (name, arguments, reason) in told.items()}


@pytest.mark.parametrize(
    ("kind", "at"), [("greedy", 5), ("two", 20), pytest.param("two", 1, marks=pytest.mark.soak)]
)
def test_d1_a_death_of_decode_amid_a_call_is_not_seen(
    pairs: PDBench, reference: PDBench, kind: str, at: int
) -> None:
    fields = asked(kind, fresh_prompt(30))
    wanted = whole(reference, fields)
    moves = pairs.metric("atomesh_migrations_total")
    assert killed_amid(pairs, fields, at) == wanted
    assert pairs.metric("atomesh_migrations_total") - moves == 1
    for name, arguments, reason in wanted.values():
        assert (name, reason) == ("route", "tool_calls")
        jsonschema.validate(json.loads(arguments), ROUTE)


def test_a8_a_call_across_the_hand_off_is_u_s(apart: PDBench, reference: PDBench) -> None:
    """The first token of the mark is prefill's, all others decode's."""
    for kind in KINDS:
        fields = asked(kind, fresh_prompt(30))
        assert whole(apart, fields) == whole(reference, fields)
