"""The text side of a model whose text is another server's business: there is none here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from atomesh.errors import InvalidRequestError
from atomesh.frontend.text.tokenizer import Tokenizer


class RelayedTokenizer(Tokenizer):
    """Has no vocabulary."""

    def __init__(self) -> None:
        """Nothing is loaded."""

    @property
    def vocab_size(self) -> int:
        return 0

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        _refuse()

    def encode_masked(self, text: str, unmask: Mapping[int, str]) -> list[int]:
        _refuse()

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        _refuse()


def aliases_of(model: str, aliases: Iterable[str], *, is_first: bool) -> tuple[str, ...]:
    """Those that name the model, as NAME=MODEL, and, of the first model, those that name none."""
    named = [alias.partition("=") for alias in aliases]
    return tuple(name for name, equals, of in named if of == model or (is_first and not equals))


def alias_names(aliases: Iterable[str]) -> frozenset[str]:
    """The further names themselves, whichever model is meant."""
    return frozenset(alias.partition("=")[0] for alias in aliases)


def _refuse() -> NoReturn:
    raise InvalidRequestError(
        "this model's tokens are its own server's; ask for chats, completions or responses", param="model"
    )
