"""How long an engine takes over prompts that does not say so itself: by when first tokens came. Pure."""

from dataclasses import dataclass
from math import inf

from atomesh.protocol.step_sample import StepSample

TOGETHER_S = 1e-3  # first tokens that come closer than this came of one step


@dataclass(slots=True, eq=False)
class SentPrompt:
    """`worked_s` is what the engine spent on it, as far as known."""

    num_tokens: int
    sent_at: float
    worked_s: float | None = None


class PrefillPace:
    """Of one engine. It is taken to work on prompts in turn, as a token budget a step makes it do: what lies
    between two first tokens went into the later one's prompt, or less where that was sent later."""

    def __init__(self) -> None:
        self._began_at = -inf
        self._seconds, self._tokens, self._quadratic = 0.0, 0, 0  # of prompts that await another's sample

    def sent(self, num_tokens: int, now: float) -> SentPrompt:
        return SentPrompt(num_tokens, now)

    def began(self, prompt: SentPrompt, now: float) -> None:
        """Its first token is there. The later ones change nothing."""
        if prompt.worked_s is None:
            prompt.worked_s = now - max(prompt.sent_at, self._began_at)
            self._began_at = now

    def counted(self, prompt: SentPrompt, cached_tokens: int) -> StepSample | None:
        """The engine says how much of a prompt that has begun was cached: what there is to learn of it."""
        if prompt.worked_s is None:
            return None
        cached = min(max(cached_tokens, 0), prompt.num_tokens - 1)
        self._seconds += prompt.worked_s
        self._tokens += prompt.num_tokens - cached
        self._quadratic += prompt.num_tokens**2 - cached**2
        if prompt.worked_s < TOGETHER_S:
            return None
        sample = StepSample(self._seconds, self._tokens, self._quadratic, context_tokens=0, batch=0)
        self._seconds, self._tokens, self._quadratic = 0.0, 0, 0
        return sample
