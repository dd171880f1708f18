"""Where an answer's reasoning begins and ends, in token ids, and how long it may be."""

import msgspec


class ReasoningSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first stretch of reasoning: what follows `start`, or with `begins_inside` the answer itself.

    After `max_tokens` tokens without `end`, `end` is what the model says next; None is no limit. After `end`,
    however it came, the model says `then`. One that `is_required` opens the answer, which cannot end in it.
    """

    end: tuple[int, ...]
    start: tuple[int, ...] = ()
    then: tuple[int, ...] = ()
    begins_inside: bool = False
    is_required: bool = False
    max_tokens: int | None = None
