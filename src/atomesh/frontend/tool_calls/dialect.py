"""What a dialect of tool calls is: a table of marks around calls, and how one call is read and spelled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from atomesh.frontend.tool_calls.call_reader import CallReader, Reading


class ReadsCalls(Protocol):
    def read(self, reader: CallReader) -> Reading:
        """Read one call: `begin` it, `say` its arguments, which are one JSON object, and end after it."""
        ...


class SpellsCalls(Protocol):
    def show(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as models of this dialect write it."""
        ...

    def spell(self, name: str, schema: Mapping[str, Any], lark: "Rules") -> str:
        """A Lark expression of the calls of the function `name` with arguments that fit `schema`.

        Raises InvalidRequestError for a schema that this form cannot be held to.
        """
        ...


class Rules(Protocol):
    """A grammar in the making."""

    def text(self, text: str) -> str:
        """An expression of exactly `text`, special tokens in it as such."""
        ...

    def json(self, schema: Mapping[str, Any]) -> str:
        """An expression of the compact JSON that fits `schema`."""
        ...

    def add(self, rule: str) -> str:
        """The name of a new rule whose definition is `rule`, from its attributes or colon on."""
        ...


@dataclass(frozen=True, slots=True)
class CallTable:
    """Calls in a row: `opening` first call `call_end` (`between` call `call_end`)* `closing`.

    White space may stand between any of them. Without an `opening` they can only begin the answer, with the
    character `starts_with`; with one, an empty `starts_with` allows any. Without `between` there is one call.
    """

    form: ReadsCalls
    opening: str = ""
    starts_with: str = ""
    first: str = ""
    call_end: str = ""
    between: str = ""
    closing: str = ""


@dataclass(frozen=True, slots=True)
class CallSpelling:
    """How a model is held to calls: `opening` call (`between` call)* `closing`, each text to the letter.

    Every call is `before` its form `after`. An answer in their place begins with `answer`.
    """

    form: SpellsCalls
    opening: str = ""
    before: str = ""
    after: str = ""
    between: str = ""
    closing: str = ""
    answer: str = ""

    def show(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls, each a name and its arguments, as models of this dialect write them."""
        shown = [f"{self.before}{self.form.show(name, given)}{self.after}" for name, given in calls]
        return f"{self.opening}{self.between.join(shown)}{self.closing}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """`tables` are what is read, `spelling` what is written when a call must be made.

    `marks` are texts that are special tokens in some tokenizers. `mint_id` makes a call's id of its name,
    its index and 12 random bytes.
    """

    name: str
    tables: tuple[CallTable, ...]
    spelling: CallSpelling
    marks: tuple[str, ...] = ()
    mint_id: Callable[[str, int, bytes], str] = lambda _name, _index, noise: f"call_{noise.hex()}"
