"""Prompts that no cache knows: each is asked for the first time."""

import random
from itertools import count

_seeds = count(1)


def fresh_prompt(length: int, vocab_size: int = 380) -> list[int]:
    """Random tokens, none of them special in a tiny model; the same ones in the same order in every run."""
    rng = random.Random(next(_seeds))  # noqa: S311  not for a secret
    return [rng.randrange(3, vocab_size) for _ in range(length)]
