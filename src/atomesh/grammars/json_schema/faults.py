"""What llguidance says of a schema, with the keyword that it forgets to name."""

import re

_SAID = (
    (
        re.compile("oneOf constraints are not supported"),
        "the schema's 'oneOf' is held where its schemas exclude each other by type, by constants, or by a "
        "required property that differs so; use 'anyOf'",
    ),
    (re.compile("circular references with sibling keys"), "the schema's '$ref' leads to itself: {found}"),
    (re.compile("invalid multiple of"), "the schema's 'multipleOf' must be more than 0"),
    (
        re.compile("range: min=|minimum .*maximum"),
        "the schema's 'minimum' and 'maximum' cannot be held: {found}",
    ),
    (re.compile("lookaround|regex parse error"), "the schema's 'pattern' cannot be held: {found}"),
    (
        re.compile("Regex is empty"),
        "no string satisfies the schema's 'pattern', 'format' and lengths: {found}",
    ),
)


def name_keyword(found: str) -> str:
    """The same where it says it itself."""
    for pattern, words in _SAID:
        if pattern.search(found):
            return words.format(found=found)
    return found
