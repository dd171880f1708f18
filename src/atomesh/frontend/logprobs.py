"""Log-probabilities in the shapes of the two OpenAI APIs and of vLLM's `prompt_logprobs`."""

import codecs
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from atomesh.frontend.text.tokenizer import Tokenizer
from atomesh.protocol.generation import TokenLogprobs

LEAST_LOGPROB = -9999.0  # JSON has no −inf


def finite(logprob: float) -> float:
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token by itself; bytes that are no whole character become U+FFFD."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


TokenNames = Callable[[int], str]


def token_names(tokenizer: Tokenizer, *, as_ids: bool) -> TokenNames:
    """How logprobs name tokens: by their text, or as vLLM's "token_id:123", which no two tokens share."""
    return "token_id:{}".format if as_ids else partial(token_text, tokenizer)


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


def chat_logprobs(
    tokenizer: Tokenizer, names: TokenNames, entries: Iterable[TokenLogprobs]
) -> dict[str, Any]:
    """`choices[i].logprobs` of a chat answer: one entry a token, the stop token included.

    `bytes` are the token's own, however it is named.
    """
    return {"content": [_chat_entry(tokenizer, names, entry) for entry in entries], "refusal": None}


def _chat_entry(tokenizer: Tokenizer, names: TokenNames, entry: TokenLogprobs) -> ChatTokenLogprob:
    top = [
        TopLogprob(names(token_id), finite(logprob), list(tokenizer.token_bytes(token_id)))
        for token_id, logprob in entry.top
    ]
    raw = tokenizer.token_bytes(entry.token_id)
    return ChatTokenLogprob(names(entry.token_id), finite(entry.logprob), list(raw), top)


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, as the API has them. `text_offset` counts characters of the choice's text."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def joined(self, after: "CompletionLogprobs") -> "CompletionLogprobs":
        return CompletionLogprobs(
            self.tokens + after.tokens,
            self.token_logprobs + after.token_logprobs,
            self.top_logprobs + after.top_logprobs,
            self.text_offset + after.text_offset,
        )


class CompletionLogprobsWriter:
    """One choice's logprobs, piece by piece: knows how far in the text the next token begins."""

    def __init__(
        self, tokenizer: Tokenizer, names: TokenNames, top: int, *, skip_special_tokens: bool
    ) -> None:
        """`top` likeliest tokens are told at each place, and the token itself."""
        self._tokenizer = tokenizer
        self._names = names
        self._limit = top
        self._skip_special = skip_special_tokens
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def prompt(
        self, text: str, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        """The echoed prompt's part; its first token has no probability."""
        part = CompletionLogprobs()
        self._characters = -self._count_dummy_prefix(text, token_ids)
        for token_id, entry in zip(token_ids, entries, strict=True):
            raw = self._tokenizer.token_bytes(token_id)
            is_hidden = self._tokenizer.is_special(token_id) and not text.startswith(
                raw.decode("utf-8", "replace"), max(self._characters, 0)
            )
            self._append(part, token_id, entry, is_hidden=is_hidden)
        self.skip_prompt(text)
        return part

    def skip_prompt(self, text: str) -> None:
        """The answer follows the echoed `text`, whose part another choice's writer has made."""
        self._characters = len(text)
        self._decoder.reset()

    def _count_dummy_prefix(self, text: str, token_ids: Sequence[int]) -> int:
        """1 where SentencePiece put a space before `text`, which is in its tokens and not in itself."""
        for token_id in token_ids:
            raw = self._tokenizer.token_bytes(token_id)
            if not self._tokenizer.is_special(token_id):
                return int(_count_spaces(raw.decode("utf-8", "replace")) > _count_spaces(text))
            if text.startswith(raw.decode("utf-8", "replace")):
                return 0
        return 0

    def answer(self, entries: Iterable[TokenLogprobs]) -> CompletionLogprobs:
        part = CompletionLogprobs()
        for entry in entries:
            is_hidden = self._skip_special and self._tokenizer.is_special(entry.token_id)
            self._append(part, entry.token_id, entry, is_hidden=is_hidden)
        return part

    def _append(
        self, part: CompletionLogprobs, token_id: int, entry: TokenLogprobs | None, *, is_hidden: bool
    ) -> None:
        raw = self._tokenizer.token_bytes(token_id)
        part.tokens.append(self._names(token_id))
        part.token_logprobs.append(None if entry is None else finite(entry.logprob))
        part.top_logprobs.append(None if entry is None else self._top(entry))
        part.text_offset.append(max(self._characters + self._breaks_character(raw), 0))
        if not is_hidden:
            self._characters += len(self._decoder.decode(raw))

    def _breaks_character(self, raw: bytes) -> bool:
        """What was begun before becomes a U+FFFD in front of this token."""
        return bool(self._decoder.getstate()[0]) and not (raw and _is_continuation(raw[0]))

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The most likely tokens and the token itself; of equal strings the likelier one."""
        top: dict[str, float] = {}
        for token_id, logprob in entry.top[: self._limit]:
            top.setdefault(self._names(token_id), finite(logprob))
        own = self._names(entry.token_id)
        top[own] = max(finite(entry.logprob), top.get(own, LEAST_LOGPROB))
        return top


def _count_spaces(text: str) -> int:
    """Those that it begins with."""
    return len(text) - len(text.lstrip(" "))


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


class RankedLogprob(msgspec.Struct, frozen=True):
    logprob: float
    rank: int | None
    decoded_token: str


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs | None]
) -> list[dict[str, RankedLogprob] | None]:
    """vLLM's `prompt_logprobs`: by prompt token, token id → logprob of the likeliest and of itself."""
    return [None if entry is None else _ranked(tokenizer, entry) for entry in entries]


def _ranked(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, RankedLogprob]:
    own = RankedLogprob(finite(entry.logprob), entry.rank, token_text(tokenizer, entry.token_id))
    ranked = {str(entry.token_id): own}
    for rank, (token_id, logprob) in enumerate(entry.top, start=1):
        if token_id != entry.token_id:
            ranked[str(token_id)] = RankedLogprob(finite(logprob), rank, token_text(tokenizer, token_id))
    return ranked
