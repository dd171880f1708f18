"""Where a worker publishes its KV events."""

import pytest

from atomesh.cli.publish_flags import PublishFlags
from atomesh.engine.zmq_publisher import PublisherAddress
from atomesh.errors import ConfigurationError


def test_nothing_is_published_unless_asked() -> None:
    assert PublishFlags().address() is None


def test_both_endpoints_are_handed_on() -> None:
    flags = PublishFlags(publish_kv_events="tcp://*:5557", replay_kv_events="tcp://*:5558")

    assert flags.address() == PublisherAddress("tcp://*:5557", "tcp://*:5558")


def test_replay_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="goes with --publish-kv-events"):
        PublishFlags(replay_kv_events="tcp://*:5558").address()
