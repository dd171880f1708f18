"""Every policy by name; imported on use."""

from collections.abc import Mapping
from importlib import import_module

from atomesh.errors import InvalidRequestError
from atomesh.mesh.placement.inputs import Stage
from atomesh.mesh.placement.policies.policy import Policy

_HERE = "atomesh.mesh.placement.policies"

POLICIES: Mapping[str, str] = {
    "least_work": f"{_HERE}.policy:Everyone",
}
DEFAULT_POLICY = "least_work"


class PolicySet:
    """One model's policies, each made when it is first asked for and kept with its state."""

    def __init__(self, prefill: str = DEFAULT_POLICY, decode: str | None = None) -> None:
        """`prefill` and `decode` are what a pool follows when a request names no policy.

        Without `decode`, decode workers follow the counterpart of `prefill`.
        """
        self._defaults: dict[Stage, str] = {"prefill": prefill, "decode": decode or prefill}
        self._made: dict[tuple[str, Stage], Policy] = {}

    def name(self, wanted: str, stage: Stage) -> str:
        """The policy that a step of a request follows which names `wanted`, or nothing.

        Raises InvalidRequestError for a name that is none.
        """
        check_policy(wanted)
        return wanted or self._defaults[stage]

    def get(self, wanted: str, stage: Stage) -> Policy:
        name = self.name(wanted, stage)
        key = (name, stage)
        if key not in self._made:
            module, _, kind = POLICIES[name].partition(":")
            self._made[key] = getattr(import_module(module), kind)()
        return self._made[key]


def check_policy(name: str) -> None:
    """Raises InvalidRequestError unless `name` is a policy's, or empty."""
    if name and name not in POLICIES:
        raise InvalidRequestError(
            f"there is no placement policy {name[:100]!r}; there are {', '.join(POLICIES)}", param="policy"
        )
