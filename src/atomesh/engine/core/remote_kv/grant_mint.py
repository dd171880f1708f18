"""Grants: the names under which a peer may write to blocks of ours."""

import hashlib
import hmac

from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.protocol.kv_handoff import GRANT_BYTES
from atomesh.protocol.ticket import Ticket


class GrantMint:
    """No stranger can guess a grant, and no worker mints the same one twice."""

    def __init__(self, config: RemoteKVConfig) -> None:
        self._key = config.secret + config.incarnation.encode()
        self._num_grants = 0

    def mint(self, ticket: Ticket) -> bytes:
        self._num_grants += 1
        text = b"atomesh grant\0" + self._num_grants.to_bytes(8, "little") + ticket.ticket_id
        return hmac.new(self._key, text, hashlib.sha256).digest()[:GRANT_BYTES]
