"""Who takes part in a hand-off, and for which KV."""

from dataclasses import dataclass, field

from atomesh.protocol.kv_layout import KVLayout


@dataclass(frozen=True, slots=True)
class KVIdentity:
    """What a worker proves (`secret`, never sent) and says of itself at a connection's hello."""

    secret: bytes = field(repr=False)
    incarnation: str
    layout: KVLayout
