"""The size budgets of the house: what outgrows one is split, or let through below with a reason.

A function's length is counted from its `def` to its end, less its docstring: contracts may be as long as
they must.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Source = Any  # tests/architecture/conftest.py, which cannot be imported by name

FILE_LINES = 350
FUNCTION_LINES = 50
FUNCTION_LINES_P90 = 30
PARAMETERS = 6
NESTING = 3

# "path" or "path::function" → the limit that holds instead, and why. Growth is a decision.
ALLOWED_FILE_LINES: dict[str, int] = {}
ALLOWED_FUNCTION_LINES: dict[str, int] = {}
ALLOWED_PARAMETERS: dict[str, int] = {}
ALLOWED_NESTING: dict[str, int] = {
    # Guard, contexts, loop, and no frame where a step brings none: a stream's whole life on one screen.
    "frontend/openai/call.py::Answering._stream": 4,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)


@dataclass(frozen=True)
class Measured:
    """`where` is "path::function", or "path::Class.method"."""

    where: str
    lines: int
    parameters: int
    nesting: int


def functions(source: Source) -> Iterator[Measured]:
    yield from _functions_in(source.tree, source.path, "")


def _functions_in(node: ast.AST, path: str, prefix: str) -> Iterator[Measured]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield _measure(child, f"{path}::{prefix}{child.name}")
        is_named = isinstance(child, Function | ast.ClassDef)
        yield from _functions_in(child, path, f"{prefix}{child.name}." if is_named else prefix)


def _measure(function: Function, where: str) -> Measured:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return Measured(
        where=where,
        lines=(function.end_lineno or 0) - function.lineno + 1 - _docstring_lines(function),
        parameters=len([name for name in names if name not in ("self", "cls")]),
        nesting=_nesting(function.body),
    )


def _docstring_lines(function: Function) -> int:
    if ast.get_docstring(function, clean=False) is None:
        return 0
    first = function.body[0]
    return (first.end_lineno or 0) - first.lineno + 1


def _nesting(body: list[ast.stmt]) -> int:
    return max((_depth(statement) for statement in body), default=0)


def _depth(statement: ast.AST) -> int:
    """Levels of blocks at `statement`.

    An elif is no deeper than its if, and inner functions are measured alone.
    """
    if isinstance(statement, Function | ast.ClassDef):
        return 0
    inside = [_depth(child) for child in ast.iter_child_nodes(statement)]
    own = isinstance(statement, BLOCKS)
    if (
        isinstance(statement, ast.If)
        and len(statement.orelse) == 1
        and isinstance(statement.orelse[0], ast.If)
    ):
        bodies = [1 + _nesting(statement.body), _depth(statement.orelse[0])]
        return max(bodies)
    return max(inside, default=0) + own


def all_functions(sources: list[Source]) -> list[Measured]:
    return [function for source in sources for function in functions(source)]


def beyond(
    measured: list[Measured], size: Callable[[Measured], int], limit: int, allowed: dict[str, int]
) -> list[str]:
    return [
        f"{function.where}: {size(function)} > {allowed.get(function.where, limit)}"
        for function in measured
        if size(function) > allowed.get(function.where, limit)
    ]


def test_files_keep_their_budget(sources: list[Source], size_report: list[str]) -> None:
    lines = {source.path: len(source.text.splitlines()) for source in sources}
    longest = sorted(lines, key=lambda path: -lines[path])[:3]
    size_report.append(
        f"sizes: {len(lines)} files, {sum(lines.values())} lines; "
        f"longest {', '.join(f'{path} {lines[path]}' for path in longest)}"
    )

    over = {path: n for path, n in lines.items() if n > ALLOWED_FILE_LINES.get(path, FILE_LINES)}
    assert over == {}


def test_functions_keep_their_budget(sources: list[Source], size_report: list[str]) -> None:
    measured = all_functions(sources)
    ordered = sorted(function.lines for function in measured)
    p90 = ordered[int(0.9 * (len(ordered) - 1))]
    longest = sorted(measured, key=lambda function: -function.lines)[:3]
    size_report.append(
        f"sizes: {len(measured)} functions, median {ordered[len(ordered) // 2]}, p90 {p90} lines; "
        f"longest {', '.join(f'{function.where} {function.lines}' for function in longest)}"
    )

    assert beyond(measured, lambda function: function.lines, FUNCTION_LINES, ALLOWED_FUNCTION_LINES) == []
    assert p90 <= FUNCTION_LINES_P90


def test_functions_take_few_parameters(sources: list[Source]) -> None:
    # A command's parameters are its flags, and the reader sees them in --help.
    measured = all_functions([source for source in sources if not source.path.startswith("cli/")])

    assert beyond(measured, lambda function: function.parameters, PARAMETERS, ALLOWED_PARAMETERS) == []


def test_functions_are_not_nested_deeply(sources: list[Source]) -> None:
    assert beyond(all_functions(sources), lambda f: f.nesting, NESTING, ALLOWED_NESTING) == []


def test_nothing_is_let_through_that_keeps_its_budget(sources: list[Source]) -> None:
    lines = {source.path: len(source.text.splitlines()) for source in sources}
    by_name = {function.where: function for function in all_functions(sources)}
    stale = [path for path in ALLOWED_FILE_LINES if lines.get(path, 0) <= FILE_LINES]
    for allowed, limit, size in (
        (ALLOWED_FUNCTION_LINES, FUNCTION_LINES, "lines"),
        (ALLOWED_PARAMETERS, PARAMETERS, "parameters"),
        (ALLOWED_NESTING, NESTING, "nesting"),
    ):
        stale += [name for name in allowed if getattr(by_name.get(name), size, 0) <= limit]

    assert stale == []


def test_the_yardstick() -> None:
    tree = ast.parse(
        "class C:\n"
        "    def f(self, a, *, b):\n"
        '        """One.\n\n        Two.\n        """\n'
        "        if a:\n"
        "            return 1\n"
        "        elif b:\n"
        "            for _ in a:\n"
        "                pass\n"
        "        return 2\n"
    )

    assert list(_functions_in(tree, "x.py", "")) == [Measured("x.py::C.f", lines=7, parameters=2, nesting=2)]
