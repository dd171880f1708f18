"""Regular expressions that llguidance would take for other ones."""

import re

_HALF_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")


def check_expression(source: str) -> None:
    r"""Raises ValueError for one that ends within an escape: llguidance leaves a last `\` out."""
    if _HALF_ESCAPE.search(source):
        raise ValueError(
            r"the expression ends with half an escape; write \\ for a backslash, or leave it out"
        )
