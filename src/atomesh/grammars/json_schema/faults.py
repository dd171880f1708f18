"""What llguidance says of a schema, with the keyword that it forgets to name."""

import re

_SAID = (
    (
        "oneOf constraints are not supported",
        "the schema's 'oneOf' is held where its schemas exclude each other by type, by constants, or by a "
        "required property of such; use 'anyOf'",
    ),
    (
        "min/maxProperties",
        "the schema's 'minProperties' and 'maxProperties' are held where all named properties are required, "
        "or none but those may be; {found}",
    ),
    ("circular references with sibling keys", "the schema's '$ref' leads to itself: {found}"),
    ("invalid multiple of", "the schema's 'multipleOf' must be more than 0"),
    ("required item is unsatisfiable", "the schema's 'minItems' wants an item that cannot be"),
    ("patternProperty regexes", "the schema's 'patternProperties' must exclude each other: {found}"),
    (
        "range: min=|minimum .*maximum|integer interval",
        "nothing is within the schema's 'minimum' (or 'exclusiveMinimum') and 'maximum' (or "
        "'exclusiveMaximum'): {found}",
    ),
    ("lookaround|regex parse error", "the schema's 'pattern' or 'patternProperties' cannot be held: {found}"),
    ("Regex is empty", "no string satisfies the schema's 'pattern', 'format' and lengths: {found}"),
)


def name_keyword(found: str) -> str:
    """The same where it says it itself."""
    for pattern, words in _SAID:
        if re.search(pattern, found):
            return words.format(found=found)
    return found
