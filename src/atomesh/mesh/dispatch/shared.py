"""What the dispatchers of all models have in common in one gateway."""

import secrets
from dataclasses import dataclass, field

from atomesh.mesh.backends.knowledge import Knowledge
from atomesh.mesh.dispatch.explanations import Errors, ExplanationStore
from atomesh.mesh.dispatch.observation import NOTHING_OBSERVED, Observation
from atomesh.mesh.dispatch.tickets import TicketOffice
from atomesh.mesh.request_flow.quarantine import Quarantine
from atomesh.mesh.request_flow.retry_budget import RetryBudget


@dataclass(frozen=True, slots=True)
class Shared:
    """`secret` is the cluster's: from it follow the keys of tickets and block hashes."""

    secret: bytes
    office: TicketOffice
    knowledge: Knowledge = field(default_factory=Knowledge)
    explanations: ExplanationStore = field(default_factory=ExplanationStore)
    observation: Observation = NOTHING_OBSERVED
    retries: RetryBudget = field(default_factory=RetryBudget)
    quarantine: Quarantine = field(default_factory=Quarantine)


def share(secret: bytes, errors: Errors | None = None, observation: Observation = NOTHING_OBSERVED) -> Shared:
    """For a gateway that is just starting; `errors` hears how far predictions are off."""
    office = TicketOffice(secret, secrets.token_hex(16))
    return Shared(secret, office, explanations=ExplanationStore(errors), observation=observation)
