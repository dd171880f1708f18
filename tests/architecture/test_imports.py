"""Who may import whom (docs/architecture.md): each room lists the rooms it may know, and knows no other."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

Source = Any  # tests/architecture/conftest.py, which cannot be imported by name

LEAVES = {"errors", "clock", "byte_size", "tls_trust"}
FACTS = LEAVES | {"protocol", "sparse_log"}
# A room is a first-level package or module; `engine.core`, which decides, is a room of its own.
ROOMS: Mapping[str, set[str]] = {
    "": {"llm", "protocol", "request_output"},  # the public names, resolved on first use
    "errors": set(),
    "clock": set(),
    "byte_size": set(),
    "listening": {"errors", "protocol"},
    "sparse_log": {"clock"},
    "thread_policy": set(),
    "tls_trust": set(),
    "prompt_progress": set(),
    "protocol": LEAVES,
    "model_files": FACTS,
    "grammars": FACTS,
    "observability": FACTS,
    "kv_transfer": FACTS | {"listening"},
    "engine.core": FACTS,
    "engine": FACTS
    | {
        "engine.core",
        "grammars",
        "kv_transfer",
        "listening",
        "model_files",
        "observability",
        "thread_policy",
    },
    "frontend": FACTS | {"", "grammars", "model_files", "observability"},
    "mesh": FACTS | {"frontend", "observability"},
    "planner": FACTS | {"bench", "engine.core", "mesh"},
    "bench": LEAVES,
    "request_output": FACTS | {"frontend"},
    "llm": FACTS
    | {"engine", "frontend", "grammars", "model_files", "prompt_progress", "request_output", "thread_policy"},
    "testing": FACTS
    | {"engine", "engine.core", "frontend", "grammars", "kv_transfer", "mesh", "model_files"},
    "__main__": {"cli"},
    "cli": FACTS
    | {"", "bench", "engine", "frontend", "mesh", "model_files", "observability", "llm", "request_output"}
    | {"grammars", "kv_transfer", "listening", "thread_policy"},
}
# What decides takes data and returns data: nothing here tells the time, waits, rolls dice, writes or reads.
PURE_ROOMS = (
    "atomesh.engine.core.",
    "atomesh.mesh.admission.",
    "atomesh.mesh.placement.",
    "atomesh.mesh.kv_index.",
    "atomesh.mesh.request_flow.",
    "atomesh.protocol.",
)
PURE_MODULES = {
    f"atomesh.bench.{name}"
    for name in (
        "arrivals",
        "completion_stream",
        "conversation",
        "dialect",
        "failures",
        "goodput",
        "prompts",
        "record",
        "report",
        "sse",
        "statistics",
        "workload",
    )
}
PURE_LIBRARIES = {
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "importlib",  # registries name what they hold, and import it on use
    "itertools",
    "math",
    "msgspec",
    "operator",
    "statistics",
    "struct",
    "typing",
}
TORCH_FREE = (
    "atomesh.protocol",
    "atomesh.errors",
    "atomesh.clock",
    "atomesh.listening",
    "atomesh.engine.core",
    "atomesh.model_files",
    "atomesh.planner",
)
# These import no engine, so torch must not come in by another door either: the gateway starts in an instant.
TORCH_FREE_SHELLS = ("atomesh.frontend", "atomesh.mesh", "atomesh.observability", "atomesh.bench")


def imports(source: Source, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, anywhere in the file and also for types alone."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.path}:{node.lineno}: imports are absolute"
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                yield node.lineno, member if member in known else str(node.module)


def own_imports(source: Source, known: set[str]) -> Iterator[tuple[int, str]]:
    for line, name in imports(source, known):
        if name.split(".")[0] == "atomesh":
            yield line, name


def room(module: str) -> str:
    inner = module.removeprefix("atomesh").removeprefix(".")
    return "engine.core" if f"{inner}.".startswith("engine.core.") else inner.split(".")[0]


def names(sources: list[Source]) -> set[str]:
    return {source.module for source in sources}


def test_every_room_is_on_the_map(sources: list[Source]) -> None:
    assert {room(source.module) for source in sources} <= set(ROOMS)


def test_rooms_import_only_the_rooms_they_may(sources: list[Source]) -> None:
    known = names(sources)
    trespasses = [
        f"{source.path}:{line}: {room(source.module)} may not import {name}"
        for source in sources
        for line, name in own_imports(source, known)
        if room(name) not in ROOMS[room(source.module)] | {room(source.module)}
    ]

    assert trespasses == []


def test_the_rules_would_catch_the_trespasses_that_matter() -> None:
    assert "engine" not in ROOMS["mesh"] | ROOMS["frontend"]
    assert not {"mesh", "frontend"} & ROOMS["engine"]
    assert "mesh" not in ROOMS["frontend"]
    assert "engine" not in ROOMS["engine.core"]
    assert ROOMS["model_files"] <= FACTS
    assert all("testing" not in allowed for allowed in ROOMS.values())
    assert [name for name, allowed in ROOMS.items() if "cli" in allowed] == ["__main__"]


def package_node(module: str, packages: set[str]) -> str:
    """The package a module belongs to.

    A module beside sub-packages stands for itself, as the shell over them.
    """
    if module in packages:
        return module
    parent = module.rpartition(".")[0]
    has_sub_packages = any(package.startswith(f"{parent}.") for package in packages)
    return module if has_sub_packages else parent


def find_cycle(edges: Mapping[str, set[str]]) -> list[str]:
    """Some cycle, its first node repeated at its end; empty when there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(edges.get(node, set())):
            cycle = visit(target, [*path, node])
            if cycle:
                return cycle
        done.add(node)
        return []

    return next((cycle for node in sorted(edges) if (cycle := visit(node, []))), [])


def test_no_cycles_between_modules(sources: list[Source]) -> None:
    """Not even for types alone."""
    known = names(sources)
    edges = {
        source.module: {name for _, name in own_imports(source, known) if name != "atomesh"}
        for source in sources
        if source.module != "atomesh"
    }

    assert find_cycle(edges) == []


def test_no_cycles_between_packages(sources: list[Source]) -> None:
    known = names(sources)
    packages = {source.module for source in sources if source.is_package}
    edges: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources:
        if source.module == "atomesh":  # the lazy public names are the one way down from the top
            continue
        here = package_node(source.module, packages)
        there = {package_node(name, packages) for _, name in own_imports(source, known) if name != "atomesh"}
        edges[here] |= there - {here}

    assert find_cycle(edges) == []


def test_a_cycle_would_be_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def foreign_imports(sources: list[Source], modules: set[str], allowed: set[str]) -> list[str]:
    known = names(sources)
    return [
        f"{source.path}:{line}: {name}"
        for source in sources
        if source.module in modules
        for line, name in imports(source, known)
        if name.split(".")[0] not in allowed | {"atomesh"}
    ]


def test_what_decides_is_pure(sources: list[Source]) -> None:
    pure = {module for module in names(sources) if module.startswith(PURE_ROOMS)}

    assert len(pure) > len(PURE_ROOMS)
    assert foreign_imports(sources, pure, PURE_LIBRARIES) == []


def test_the_deciding_half_of_bench_is_pure(sources: list[Source]) -> None:
    assert names(sources) >= PURE_MODULES
    assert foreign_imports(sources, PURE_MODULES, PURE_LIBRARIES | {"numpy"}) == []


@pytest.mark.parametrize("rooms", [TORCH_FREE, TORCH_FREE_SHELLS], ids=["facts and cores", "shells"])
def test_imports_where_torch_is_absent(sources: list[Source], rooms: tuple[str, ...]) -> None:
    modules = ["atomesh"] + [
        source.module for source in sources if f"{source.module}.".startswith(tuple(f"{r}." for r in rooms))
    ]
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from importlib import import_module\n"
        "for name in sys.argv[1:]: import_module(name)\n"
        "print(len(sys.argv) - 1)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, *modules], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.stderr == ""
    assert done.stdout == f"{len(modules)}\n"
    assert len(modules) > len(rooms)


def test_package_files_are_empty_but_the_top_one(sources: list[Source]) -> None:
    packages = [source for source in sources if source.is_package and source.module != "atomesh"]

    assert packages
    assert [source.path for source in packages if source.text] == []
