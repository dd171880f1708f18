"""The arguments of an answer's last tool call as they come: whether they are whole."""

import json


class LastCall:
    """Whole is a JSON object; what the end of an answer, or a client's stop string, has cut is none."""

    def __init__(self) -> None:
        self._arguments: list[str] = []

    def begin(self) -> None:
        self._arguments.clear()

    def add(self, text: str) -> None:
        self._arguments.append(text)

    @property
    def is_whole(self) -> bool:
        """False where there is no call."""
        return is_object("".join(self._arguments))


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(_constant: str) -> None:
    raise ValueError
