"""Who a request belongs to: what it may use, and what share of the workers is its."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

PriorityClass = Literal["high", "normal", "low"]
CLASSES: tuple[PriorityClass, ...] = get_args(PriorityClass)
CLASS_BAND = 2**32  # of the engine's priority numbers, of which lower ones run first
_IN_BAND = 2**31


@dataclass(frozen=True, slots=True)
class Tenant:
    """`models` are names or aliases, None for all. Tenants of one class share the workers by `weight`.

    None for `requests_per_minute` and `tokens_per_minute` is no limit; prompt and answer tokens both count.
    A tenant without `has_own_prefixes` shares cached prefixes with all others of that kind.
    """

    name: str
    models: frozenset[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    weight: float = 1.0
    priority_class: PriorityClass = "normal"
    may_explain: bool = True
    may_choose_policy: bool = True
    may_set_priority: bool = True
    has_own_prefixes: bool = True

    def may_use(self, names: Collection[str]) -> bool:
        """A model that has these names."""
        return self.models is None or not self.models.isdisjoint(names)

    def salt(self, own: str) -> str:
        """The cache salt of a request that came with the salt `own`: never that of another tenant's request,
        whatever either sends."""
        return f"{len(self.name)}:{self.name}:{own}" if self.has_own_prefixes else own

    def engine_priority(self, own: int) -> int:
        """The class first; within it, where allowed, what the client said."""
        asked = max(-_IN_BAND, min(own, _IN_BAND - 1)) if self.may_set_priority else 0
        return (CLASSES.index(self.priority_class) - CLASSES.index("normal")) * CLASS_BAND + asked


ANONYMOUS = Tenant("anonymous", has_own_prefixes=False)
