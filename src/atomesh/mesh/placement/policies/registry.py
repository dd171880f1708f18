"""Every policy by name; imported on use. A new one is a file, and a line here."""

from collections.abc import Mapping
from importlib import import_module

from atomesh.errors import InvalidRequestError
from atomesh.mesh.placement.inputs import STAGES, Stage
from atomesh.mesh.placement.policies.policy import Policy

_HERE = "atomesh.mesh.placement.policies"

POLICIES: Mapping[str, str] = {
    "kv_aware": f"{_HERE}.kv_aware:KVAware",
    "least_work": f"{_HERE}.least_work:LeastWork",
    "round_robin": f"{_HERE}.round_robin:RoundRobin",
    "random": f"{_HERE}.random_choice:RandomChoice",
    "power_of_two": f"{_HERE}.power_of_two:PowerOfTwo",
    "prefix_hash": f"{_HERE}.prefix_hash:PrefixHash",
    "cache_aware": f"{_HERE}.cache_aware:CacheAware",
    "session": f"{_HERE}.session:Session",
}
DEFAULT_POLICY = "kv_aware"
# What decode workers follow where only a policy with affinity is named: it is prefill that has use for that.
_COUNTERPARTS = {"prefix_hash": "least_work", "cache_aware": "least_work", "session": "least_work"}


class PolicySet:
    """One model's policies, each made when it is first asked for and kept with its state."""

    def __init__(self, prefill: str = DEFAULT_POLICY, decode: str = "") -> None:
        """`prefill` and `decode` are what a pool follows when a request names no policy.

        Without `decode`, decode workers follow the counterpart of `prefill`. Raises InvalidRequestError for
        the name of no policy.
        """
        check_policy(prefill)
        check_policy(decode)
        self._defaults: dict[Stage, str] = {"prefill": prefill, "decode": decode or _counterpart(prefill)}
        self._made: dict[tuple[str, Stage], Policy] = {}
        self._labels: dict[str, str] = {}

    def name(self, wanted: str, stage: Stage) -> str:
        """The policy that a step of a request follows which names `wanted`, or nothing.

        Raises InvalidRequestError for the name of no policy.
        """
        if not wanted:
            return self._defaults[stage]
        check_policy(wanted)
        return _counterpart(wanted) if stage == "decode" else wanted

    def reads_prompt(self, wanted: str) -> bool:
        """Whether a policy of either step has use for the prompt's hashes; not that of an unknown name."""
        if wanted and wanted not in POLICIES:
            return False
        return any(self.get(wanted, stage).reads_prompt for stage in STAGES)

    def label(self, wanted: str) -> str:
        """The policies of both steps, for people: "PREFILL+DECODE", or the one name that both have."""
        if wanted not in self._labels:
            self._labels[wanted] = "+".join(dict.fromkeys(self.name(wanted, stage) for stage in STAGES))
        return self._labels[wanted]

    def get(self, wanted: str, stage: Stage) -> Policy:
        """As `name`."""
        key = (self.name(wanted, stage), stage)
        if key not in self._made:
            module, _, kind = POLICIES[key[0]].partition(":")
            self._made[key] = getattr(import_module(module), kind)()
        return self._made[key]


def check_policy(name: str) -> None:
    """Raises InvalidRequestError unless `name` is a policy's, or empty."""
    if name and name not in POLICIES:
        raise InvalidRequestError(
            f"there is no placement policy {name[:100]!r}; there are {', '.join(POLICIES)}",
            param="x-placement-policy",
        )


def _counterpart(prefill: str) -> str:
    return _COUNTERPARTS.get(prefill, prefill)
