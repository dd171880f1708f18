"""What a client hands back with a thought that it was told."""

import hashlib
from base64 import b64encode


class Signature:
    """The text's digest. Clients need one that is not empty; what they hand back is not held against it."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32)

    def add(self, text: str) -> None:
        self._hash.update(text.encode("utf-8", "surrogatepass"))

    @property
    def text(self) -> str:
        return b64encode(self._hash.digest()).decode()


def sign(text: str) -> str:
    signature = Signature()
    signature.add(text)
    return signature.text
