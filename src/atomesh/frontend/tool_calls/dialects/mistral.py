"""Mistral: `[TOOL_CALLS]` and a JSON list of calls, or, newer, `[TOOL_CALLS]NAME{…}` for each call.

Between the name and the object may stand `[CALL_ID]ID` and `[ARGS]`.
"""

from string import ascii_letters, digits

from atomesh.frontend.tool_calls.call_reader import CallReader, Reading
from atomesh.frontend.tool_calls.dialect import CallSpelling, CallTable, Dialect
from atomesh.frontend.tool_calls.json_form import JsonForm

_OPENING, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID_CHARACTERS = digits + ascii_letters
_ID_LENGTH = 9


class _NamedForm:
    def read(self, reader: CallReader) -> Reading:
        name = yield from reader.name()
        call_id = None
        mark = ""
        if (yield from reader.peek()) == "[":
            mark = yield from reader.one_of((_ID, _ARGUMENTS))
        if mark == _ID:
            call_id = yield from reader.name("")
            yield from reader.literal(_ARGUMENTS)
        yield from reader.space()
        yield from reader.call(name, call_id)


def _mint_id(_name: str, _index: int, noise: bytes) -> str:
    """Nine letters and digits: what Mistral's templates demand."""
    number = int.from_bytes(noise, "big")
    characters = []
    for _ in range(_ID_LENGTH):
        number, place = divmod(number, len(_ID_CHARACTERS))
        characters.append(_ID_CHARACTERS[place])
    return "".join(characters)


MISTRAL = Dialect(
    name="mistral",
    tables=(
        CallTable(JsonForm(), opening=_OPENING, starts_with="[", first="[", between=",", closing="]"),
        CallTable(_NamedForm(), opening=_OPENING),
    ),
    spelling=CallSpelling(JsonForm(), opening=f"{_OPENING}[", between=", ", closing="]"),
    marks=(_OPENING, _ID, _ARGUMENTS),
    mint_id=_mint_id,
)
