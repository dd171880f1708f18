"""Where a worker tells others what its prefix cache holds."""

from dataclasses import dataclass

from cyclopts import Group, Parameter

from atomesh.engine.zmq_publisher import PublisherAddress
from atomesh.errors import ConfigurationError


@Parameter(name="*", group=Group("KV events", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class PublishFlags:
    publish_kv_events: str | None = None
    """Publish what the prefix cache holds over ZeroMQ, as vLLM does, for other routers: an endpoint like
    tcp://127.0.0.1:5557; by default nowhere. Whoever reads it reads users' tokens. Needs pyzmq."""
    replay_kv_events: str | None = None
    """Where who missed some can have the last ones again: another endpoint; by default nowhere."""

    def address(self) -> PublisherAddress | None:
        """Raises ConfigurationError when there is something to replay, but nothing published."""
        if self.publish_kv_events is not None:
            return PublisherAddress(self.publish_kv_events, self.replay_kv_events)
        if self.replay_kv_events is not None:
            raise ConfigurationError(
                "--replay-kv-events goes with --publish-kv-events: give both, or neither"
            )
        return None


PUBLISH_DEFAULTS = PublishFlags()
