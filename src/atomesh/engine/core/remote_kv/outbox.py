"""What a worker's hand-offs want done, and what became of them: shared by its sending and receiving half."""

from collections import Counter
from dataclasses import dataclass, field

from atomesh.engine.core.remote_kv.actions import Action, Send
from atomesh.protocol.kv_handoff import HandoffMessage


@dataclass(slots=True)
class Outbox:
    """`transfers` counts hand-offs and fetches that ended, by outcome; `refusals` what was refused, by
    reason."""

    actions: list[Action] = field(default_factory=list)
    transfers: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    num_pushes: int = 0

    def send(self, peer: str, message: HandoffMessage) -> None:
        self.actions.append(Send(peer, message))

    def next_push_id(self) -> int:
        self.num_pushes += 1
        return self.num_pushes

    def take(self) -> list[Action]:
        actions, self.actions = self.actions, []
        return actions
