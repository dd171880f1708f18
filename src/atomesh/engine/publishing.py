"""What an engine needs to publish its KV events, or not to."""

from atomesh.engine.event_sink import EventSink, NoSink
from atomesh.engine.foreign_events import ForeignWords
from atomesh.engine.recording_hasher import RecordingHasher
from atomesh.engine.zmq_publisher import PublisherAddress, ZmqPublisher
from atomesh.protocol.block_hash import BlockHasher, model_hasher, weights_name
from atomesh.protocol.worker import ModelDescription

REMEMBERED_POOLS = 2  # blocks that have been hashed but are not cached yet wait to be computed


def publishing(
    model: ModelDescription, secret: bytes, address: PublisherAddress | None
) -> tuple[BlockHasher, EventSink]:
    """The hasher for the engine's scheduler, and where its events go; nowhere without an address.

    Raises ConfigurationError where pyzmq is not installed, or the address cannot be had.
    """
    if address is None:
        return model_hasher(secret, model), NoSink()
    remembered = REMEMBERED_POOLS * model.num_blocks
    hasher = RecordingHasher(secret, weights_name(model), model.block_size, remembered)
    return hasher, ZmqPublisher(address, ForeignWords(hasher.recall, model.block_size, model.num_blocks))
