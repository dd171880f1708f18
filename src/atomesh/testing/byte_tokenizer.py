"""A tokenizer double: a token is one byte, so that a character beyond ASCII is split over several."""

from collections.abc import Sequence
from types import MappingProxyType

BOS, END, START = 256, 257, 258
_SPECIAL = {"<s>": BOS, "<|end|>": END, "<|start|>": START}


class ByteTokenizer:
    """Ids 0 to 255 are bytes; `<s>`, `<|end|>` (the EOS) and `<|start|>` follow."""

    vocab_size = 259
    bos_token_id = BOS
    eos_token_ids = (END,)
    special_tokens = _SPECIAL
    puts_space_first = False
    named_tokens = MappingProxyType({"bos_token": "<s>", "eos_token": "<|end|>"})

    def __init__(self) -> None:
        self._names = {token_id: name.encode() for name, token_id in _SPECIAL.items()}

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        ids = [BOS] if add_special_tokens else []
        while text:
            name = next((name for name in _SPECIAL if parse_special and text.startswith(name)), None)
            ids += [_SPECIAL[name]] if name else text[0].encode()
            text = text[len(name or text[0]) :]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        kept = [i for i in ids if not (skip_special_tokens and self.is_special(i))]
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else self._names.get(token_id, b"")

    def token_id(self, token: str) -> int | None:
        return _SPECIAL.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._names
