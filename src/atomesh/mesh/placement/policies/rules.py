"""Which policy the operator wants where: for all models, for one, for one of its pools."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from atomesh.errors import ConfigurationError, InvalidRequestError
from atomesh.mesh.placement.policies.registry import DEFAULT_POLICY, PolicySet, check_policy

_POOLS = {"prefill", "decode"}
_BOTH = ""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """`model` is "" for all that have no rule of their own; `decode` is "" for `prefill`'s counterpart."""

    model: str = ""
    prefill: str = DEFAULT_POLICY
    decode: str = ""


@dataclass(frozen=True, slots=True)
class PolicyRules:
    rules: tuple[PolicyRule, ...] = ()

    def with_default(self, policy: str) -> "PolicyRules":
        """The same, with `policy` where they name none."""
        is_said = any(not rule.model for rule in self.rules)
        return self if is_said else PolicyRules((*self.rules, PolicyRule(prefill=policy)))

    def for_model(self, model: str) -> PolicySet:
        """Freshly made policies, with no state yet."""
        by_model = {rule.model: rule for rule in self.rules}
        rule = by_model.get(model) or by_model.get("") or PolicyRule()
        return PolicySet(rule.prefill, rule.decode)


def parse_policies(texts: Sequence[str]) -> PolicyRules:
    """Each `[model=MODEL,]NAME`, or `[model=MODEL,]prefill=NAME,decode=NAME` with one or both of the last.

    Raises ConfigurationError for what is none, for an unknown policy, and for two rules of one model.
    """
    rules = tuple(map(_parse, texts))
    for model, count in Counter(rule.model for rule in rules).items():
        if count > 1:
            whose = f"the model {model!r}" if model else "all models"
            raise ConfigurationError(f"--policy is given {count} times for {whose}; give it once")
    return PolicyRules(rules)


def _parse(text: str) -> PolicyRule:
    parts = [_key_and_value(part) for part in text.split(",")]
    fields = dict(parts)
    named = set(fields) - {"model"}
    if len(fields) < len(parts) or not all(fields.values()) or not (named <= _POOLS or named == {_BOTH}):
        raise ConfigurationError(
            f"--policy is {text[:200]!r}; write NAME, or prefill=NAME,decode=NAME, and model=MODEL, "
            "before it for one model alone"
        )
    fields.setdefault("prefill", fields.get(_BOTH, DEFAULT_POLICY))
    try:
        for key in ("prefill", "decode"):
            check_policy(fields.get(key, ""))
    except InvalidRequestError as error:
        raise ConfigurationError(f"--policy is {text[:200]!r}: {error.message}") from None
    return PolicyRule(fields.get("model", ""), fields["prefill"], fields.get("decode", ""))


def _key_and_value(part: str) -> tuple[str, str]:
    """A policy alone has the key _BOTH."""
    key, separator, value = part.partition("=")
    return (key.strip(), value.strip()) if separator else (_BOTH, key.strip())
