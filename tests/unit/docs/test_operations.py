"""What operations.md and request-lifecycle.md name, the program has: flags, routes, metrics, fault points."""

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

import atomesh
from atomesh.cli.access_flags import AccessFlags
from atomesh.cli.bench import bench
from atomesh.cli.explain import explain
from atomesh.cli.flags import EngineFlags, GatewayFlags, ProcessFlags
from atomesh.cli.gateway import gateway
from atomesh.cli.publish_flags import PublishFlags
from atomesh.cli.serve import serve
from atomesh.cli.worker import worker
from atomesh.protocol.fault_points import FAULT_POINTS

FLAGS = (AccessFlags, EngineFlags, GatewayFlags, ProcessFlags, PublishFlags)
DOCS = Path(__file__).parents[3] / "docs"
SOURCES = Path(atomesh.__file__).parent
OPERATIONS = (DOCS / "operations.md").read_text()
LIFECYCLE = (DOCS / "request-lifecycle.md").read_text()
TENANTS = (DOCS / "tenants.md").read_text()


def words(room: str) -> str:
    return "\n".join(path.read_text() for path in sorted((SOURCES / room).rglob("*.py")))


def known_flags() -> set[str]:
    names = {
        name for command in (serve, worker, gateway, bench, explain) for name in signature(command).parameters
    }
    names |= {field.name for kind in FLAGS for field in fields(kind)}
    names |= {f"no_{field.name}" for kind in FLAGS for field in fields(kind) if field.default is True}
    return {name.replace("_", "-") for name in names}


@pytest.mark.parametrize("text", [OPERATIONS, LIFECYCLE, TENANTS], ids=["operations", "lifecycle", "tenants"])
def test_flags_are_those_of_the_commands(text: str) -> None:
    ours = "\n".join(
        line for line in text.splitlines() if "benchmarks/" not in line and "bench --" not in line
    )
    named = set(re.findall(r"--([a-z][a-z-]+)", ours))

    assert named
    assert named - known_flags() == set()


def test_fault_points_are_all_explained_and_no_others() -> None:
    explained = re.findall(r"^\| `(\w+)` \| (?:sender|prefill|decode|engine) \|", OPERATIONS, re.MULTILINE)

    assert explained == list(FAULT_POINTS)


@pytest.mark.parametrize("text", [OPERATIONS, LIFECYCLE, TENANTS], ids=["operations", "lifecycle", "tenants"])
def test_metrics_are_those_that_are_declared(text: str) -> None:
    declared = words("observability")
    named = {name.removesuffix("_total") for name in re.findall(r"`((?:vllm:|atomesh_)\w+)", text)}
    missing = {name for name in named if name.removeprefix("vllm:") not in declared}

    assert missing == set()


def test_admin_routes_are_those_there_are() -> None:
    table = re.findall(r"^\| `(GET|POST|DELETE) (/[\w/{}]+)`", OPERATIONS, re.MULTILINE)
    declared = words("mesh/gateway").replace("{id:path}", "{id}")

    assert len(table) == 9
    declared = declared.replace('EXPLAIN_PREFIX + "', '"/explain/')
    assert [path for _, path in table if f'"{path}"' not in declared] == []


@pytest.mark.parametrize("path", ["unified", "prefill-decode", "local-prefill", "recomputed"])
def test_serving_paths_are_explained(path: str) -> None:
    assert f"`{path}`" in OPERATIONS
    assert f"`{path}`" in LIFECYCLE


@pytest.mark.parametrize("name", ["operations.md", "request-lifecycle.md", "tenants.md"])
def test_links_lead_somewhere(name: str) -> None:
    for target, anchor in re.findall(r"\]\(([\w./-]+)(#[\w-]+)?\)", (DOCS / name).read_text()):
        if target == "results.md":
            continue  # written by the benchmarks
        text = (DOCS / target).read_text()
        headings = {
            "#" + re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        assert not anchor or anchor in headings
