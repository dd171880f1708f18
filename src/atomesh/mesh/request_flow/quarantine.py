"""Prompts that are suspected of killing workers: not to be tried again for a while.

A prompt is known by a hash of its tokens and its tenant's salt, so that nobody learns of another's.
"""

from collections import OrderedDict
from hashlib import blake2b

import msgspec

from atomesh.errors import FatalRequestError
from atomesh.protocol.generation import GenerationRequest

FOR_S = 120.0
MAX_PROMPTS = 1024


class Quarantine:
    """Holds the last `max_prompts`; `refused` counts requests that were turned away."""

    def __init__(self, for_s: float = FOR_S, max_prompts: int = MAX_PROMPTS) -> None:
        self._for_s = for_s
        self._max_prompts = max_prompts
        self._until: OrderedDict[bytes, float] = OrderedDict()  # the first to expire is the first
        self.barred = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._until)

    def bar(self, request: GenerationRequest, now: float) -> None:
        key = _key(request)
        self._until.pop(key, None)
        self._until[key] = now + self._for_s
        self.barred += 1
        while len(self._until) > self._max_prompts:
            self._until.popitem(last=False)

    def check(self, request: GenerationRequest, now: float) -> None:
        """Raises FatalRequestError for a prompt that is barred."""
        self._forget(now)
        if self._until and (until := self._until.get(_key(request))) is not None:
            self.refused += 1
            raise FatalRequestError(
                "workers were lost while they computed this prompt; it is not tried again for another "
                f"{max(until - now, 1.0):.0f} s"
            )

    def _forget(self, now: float) -> None:
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)


def _key(request: GenerationRequest) -> bytes:
    digest = blake2b(request.cache_salt.encode(), digest_size=16)
    digest.update(b"\0" + msgspec.msgpack.encode(request.prompt_token_ids))
    return digest.digest()
