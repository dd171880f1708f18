"""How long a grammar may be, for whoever only hands it on."""

from atomesh.errors import InvalidRequestError
from atomesh.protocol.grammar import GrammarSpec

MAX_SOURCE_BYTES = 256 * 2**10


def check_size(spec: GrammarSpec) -> None:
    """Raises InvalidRequestError."""
    size = len(spec.source.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        raise InvalidRequestError(f"it has {size} bytes; the limit is {MAX_SOURCE_BYTES}: simplify it")
