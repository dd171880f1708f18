"""The words that metrics know are those that the engine counts."""

import ast
from pathlib import Path

import atomesh.engine.core.remote_kv
import atomesh.kv_transfer.plane
from atomesh.protocol.kv_outcomes import PLANE_REFUSALS, REFUSALS, TRANSFERS

ROOM = Path(atomesh.engine.core.remote_kv.__file__).parent
PLANE = Path(atomesh.kv_transfer.plane.__file__).parent
SIDES = {"sender": "sent", "receiver": "received", "fetcher": "fetched", "lender": "lent"}
ENDING = ("_end", "_withdraw", "_revoke", "_close")
OF_TICKETS = ("ticket_", "reserve_", "fetch_", "commit_", "grant_")


def constants(module: str) -> "list[str]":
    tree = ast.parse((ROOM / f"{module}.py").read_text())
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def endings(module: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOM / f"{module}.py").read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ENDING:
            found |= {
                arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            }
    return found


def test_every_end_of_a_hand_off_has_its_word() -> None:
    for module, side in SIDES.items():
        ends = {f"{side}_{end}" for end in endings(module)}
        assert ends
        assert ends <= TRANSFERS


def test_every_refusal_has_its_word() -> None:
    modules = (*SIDES, "ticket_gate", "remote_kv")
    said = {word for module in modules for word in constants(module) if word.startswith(OF_TICKETS)}
    counted = {word for word in said if word.isidentifier()} - {"ticket_id"}
    assert len(counted) > 10
    assert counted <= REFUSALS


def test_every_refusal_on_the_kv_plane_has_its_word() -> None:
    said = {
        node.args[0].value
        for module in PLANE.glob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
        if getattr(node.func, "attr", getattr(node.func, "id", "")) in ("count_refusal", "ChannelError")
    }
    assert len(said) >= 5
    assert said <= set(PLANE_REFUSALS)
    assert set(PLANE_REFUSALS) <= REFUSALS
