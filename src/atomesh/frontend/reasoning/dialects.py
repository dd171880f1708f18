"""The dialects by name, and the one that a model speaks."""

from collections.abc import Iterable, Mapping

from atomesh.errors import ConfigurationError
from atomesh.frontend.reasoning.dialect import ReasoningDialect
from atomesh.frontend.reasoning.harmony import HarmonyDialect
from atomesh.frontend.reasoning.tag_dialect import TagDialect

# The first whose mark a template has is its model's.
_DIALECTS: tuple[ReasoningDialect, ...] = (
    HarmonyDialect(),
    TagDialect("gemma4", "<|channel>thought", "<channel|>", ("<|channel>thought",), reasons_unasked=False),
    TagDialect("mistral", "[THINK]", "[/THINK]", ("[THINK]",)),
    TagDialect("seed_oss", "<seed:think>", "</seed:think>", ("<seed:think>",)),
    TagDialect("minimax_m3", "<mm:think>", "</mm:think>", ("<mm:think>",)),
    TagDialect("kimi_vl", "◁think▷", "◁/think▷", ("◁think▷",)),
    TagDialect("apertus", "<|inner_prefix|>", "<|inner_suffix|>", ("<|inner_prefix|>",)),
    TagDialect(
        "granite",
        "Here is my thought process:",
        "Here is my response:",
        ("Here is my thought process:",),
        reasons_unasked=False,
    ),
    TagDialect("think", "<think>", "</think>", ("<think>", "</think>")),
    TagDialect("deepseek_r1", "<think>", "</think>", opens_unseen=True),
)
DIALECTS: Mapping[str, ReasoningDialect] = {dialect.name: dialect for dialect in _DIALECTS}
NONE = "none"


def find_reasoning_dialect(sources: Iterable[str], choice: str | None = None) -> ReasoningDialect | None:
    """Of a model whose chat templates have these texts; `choice` is the operator's, a name or "none".

    Raises ConfigurationError for a name that there is not.
    """
    if choice is not None:
        return parse_choice(choice)
    texts = tuple(sources)
    return next((one for one in _DIALECTS if any(map(one.is_in, texts))), None)


def parse_choice(choice: str) -> ReasoningDialect | None:
    """Raises ConfigurationError for what is neither a dialect's name nor "none"."""
    if choice == NONE:
        return None
    if choice not in DIALECTS:
        raise ConfigurationError(
            f"--reasoning-parser is {choice[:40]!r}; it must be one of {', '.join(DIALECTS)}, or {NONE}"
        )
    return DIALECTS[choice]
