"""The real engine and scheduler over a scripted executor and a clock that stands still."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atomesh.engine.core.batch import ScheduledSequence
from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.engine.engine import Engine
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.scripted_executor import NextToken, ScriptedExecutor, token_from_history

VOCAB_SIZE = 1000
SECRET = b"scripted"


@dataclass(slots=True)
class Answers:
    """Deltas gathered by (request id, choice)."""

    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    last: dict[tuple[str, int], TokenDelta] = field(default_factory=dict)
    first: dict[str, TokenDelta] = field(default_factory=dict)

    def take(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            key = (delta.request_id, delta.choice)
            self.first.setdefault(delta.request_id, delta)
            self.tokens.setdefault(key, []).extend(delta.token_ids)
            self.last[key] = delta


class ScriptedEngine:
    def __init__(
        self,
        config: SchedulerConfig,
        next_token: NextToken | None = None,
        fails: Callable[[ScheduledSequence], bool] = lambda _: False,
        hasher: BlockHasher | None = None,
        remote: RemoteKVConfig | None = None,
    ) -> None:
        self.config = config
        self.next_token = next_token or token_from_history(VOCAB_SIZE)
        self.clock = ManualClock()
        self.executor = ScriptedExecutor(self.next_token, config.num_blocks, config.block_size, fails)
        hasher = hasher or BlockHasher(SECRET, "scripted", config.block_size)
        self.scheduler = Scheduler(config, hasher, remote)
        self.engine = Engine(self.scheduler, self.executor, self.clock, describe(config))
        self.answers = Answers()

    def step(self) -> list[TokenDelta]:
        """One engine step, its books checked, its deltas gathered."""
        deltas = self.engine.step()
        self.engine.check_invariants()
        self.answers.take(deltas)
        return deltas

    def run(self, max_steps: int = 100_000) -> int:
        """Step until nothing is left to do; the number of steps. Raises AssertionError after `max_steps`."""
        for steps in range(max_steps):
            if not self.engine.has_work():
                return steps
            self.step()
        raise AssertionError(f"there is work left after {max_steps} steps")

    def solo_answer(self, request: GenerationRequest, choice: int = 0) -> list[int]:
        """What one choice of the request must be, worked out from the script alone."""
        spec, prompt = request.sampling, request.prompt_token_ids
        limit = min(spec.max_tokens, self.config.max_model_len - len(prompt))
        output: list[int] = []
        while len(output) < limit:
            output.append(self.next_token([*prompt, *output], choice))
            if len(output) >= spec.min_tokens and output[-1] in (*spec.eos_token_ids, *spec.stop_token_ids):
                break
        return output


def describe(config: SchedulerConfig) -> ModelDescription:
    return ModelDescription(
        name="scripted",
        path="",
        architecture="scripted",
        dtype="float32",
        vocab_size=VOCAB_SIZE,
        max_model_len=config.max_model_len,
        eos_token_ids=(),
        block_size=config.block_size,
        num_blocks=config.num_blocks,
    )


def scripted_request(
    request_id: str, prompt_token_ids: list[int], sampling: SamplingSpec | None = None, **fields: Any
) -> GenerationRequest:
    """`fields` are GenerationRequest's; eight tokens are asked for unless `sampling` says otherwise."""
    spec = sampling or SamplingSpec(seed=0, max_tokens=8)
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=prompt_token_ids, sampling=spec, **fields
    )
