"""How to choose tokens: what a caller asks for, and what the engine obeys."""

from collections.abc import Sequence
from typing import Any

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.protocol.grammar import GrammarSpec
from atomesh.protocol.plain_values import plain
from atomesh.protocol.reasoning import ReasoningSpec
from atomesh.protocol.sampling_bounds import BOUNDS
from atomesh.protocol.structured_outputs import StructuredOutputsParams

GREEDY_BELOW = 1e-5  # vLLM's bound: a lower temperature is greedy
MAX_LOGIT_BIAS = 1024
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_BYTES = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_BYTES = 1024


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for, in text and numbers; the names and meanings are vLLM's.

    Scalars and arrays of NumPy and PyTorch are taken for the ints, floats and lists that they are. Raises
    InvalidRequestError, which names the field, its value and what it may be, when a value is of another type
    or out of range. It cannot be changed: `clone(temperature=0.0)` is a changed copy.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        for name, (kind, default) in _FIELDS.items():
            given = getattr(self, name)
            if given is default:
                continue
            _check_count(name, given)
            value = plain(given)
            if value is not given:
                msgspec.structs.force_setattr(self, name, value)
                _check_count(name, value)
            _check_type(name, value, kind)
        if isinstance(self.structured_outputs, dict):  # a copy's
            own = msgspec.convert(self.structured_outputs, StructuredOutputsParams)
            msgspec.structs.force_setattr(self, "structured_outputs", own)
        for name, bound in BOUNDS.items():
            if (value := getattr(self, name)) is not None:
                bound.check(name, value)
        self._check_combinations()
        _check_texts("stop", "a stop string", self.stop_strings, MAX_STOP_STRING_BYTES)
        _check_texts("bad_words", "a bad word", self.bad_words or (), MAX_BAD_WORD_BYTES)

    def _check_combinations(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}; "
                "lower min_tokens or raise max_tokens",
                param="min_tokens",
            )
        if self.n > 1 and self.temperature < GREEDY_BELOW:
            raise InvalidRequestError(
                f"n is {self.n} with temperature {self.temperature:g}, which would repeat one answer; "
                f"ask for n = 1 or a temperature of at least {GREEDY_BELOW:g}",
                param="n",
            )

    def clone(self, **changes: Any) -> "SamplingParams":
        """A copy with its own lists, and with `changes` made. Raises InvalidRequestError."""
        return SamplingParams(**{**msgspec.to_builtins(self), **changes})

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class SamplingSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the engine obeys: SamplingParams with every word turned into token ids and every default settled.

    The random number that picks output token `i` of choice `c` depends on (seed, c, i) alone.
    """

    seed: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()  # empty when the caller said ignore_eos
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None
    reasoning: ReasoningSpec | None = None


_MAX_COUNTS = {
    "stop": (MAX_STOP_STRINGS, "strings"),
    "bad_words": (MAX_BAD_WORDS, "strings"),
    "logit_bias": (MAX_LOGIT_BIAS, "entries"),
}
_FIELDS = {field.name: (field.type, field.default) for field in msgspec.structs.fields(SamplingParams)}
_TYPE_WORDS: dict[Any, str] = {
    int: "an int",
    float: "a float",
    bool: "a bool",
    int | None: "an int or None",
    list[int] | None: "a list of ints or None",
    list[str] | None: "a list of strings or None",
    list[str] | str | None: "a string, a list of strings or None",
    StructuredOutputsParams | None: "StructuredOutputsParams(…) or None",
    dict[int, float] | None: "a dict from ints to floats or None",
}


def _check_count(name: str, value: object) -> None:
    """Of a list or dict, before any of what is in it is looked at."""
    if name in _MAX_COUNTS and isinstance(value, list | tuple | dict):
        most, what = _MAX_COUNTS[name]
        if len(value) > most:
            raise InvalidRequestError(
                f"{name} has {len(value)} {what}; the limit is {most}: send fewer", param=name
            )


def _check_type(name: str, value: object, kind: Any) -> None:
    """As msgspec has it: a bool is no int, an int is a float, a tuple is a list."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise InvalidRequestError(
            f"{name} is {value!r:.80} ({type(value).__name__}); it must be {_TYPE_WORDS[kind]}", param=name
        ) from None


def _check_texts(name: str, one: str, texts: Sequence[str], most_bytes: int) -> None:
    """`one` is what the message calls a single one of them."""
    for text in texts:
        size = len(text.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= most_bytes:
            raise InvalidRequestError(
                f"{one} has {size} bytes; it must have 1 to {most_bytes}: shorten it or leave it out",
                param=name,
            )
