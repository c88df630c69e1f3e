"""Topics as a client of librdkafka's knows them."""

from __future__ import annotations

import sys

from confluent_kafka import KafkaError, KafkaException

from holdfast.connectors.kafka import codes
from holdfast.connectors.kafka.native.library import Client, pointer, quick, text

_new = quick("rd_kafka_topic_new", pointer, pointer, text, pointer)
_destroy = quick("rd_kafka_topic_destroy", None, pointer)


class Topic:
    """A topic of a client's; let go with this object, and known to the client as long as that is there.

    One that the client did not know is looked up at once, in the background.  (Where partitions are assigned the
    library does so only the next time that it looks through its topics, once a second.)

    Parameters
    ----------
    client : Client
        The client; its handle stays as long as this object.
    name : str
        Name.

    Attributes
    ----------
    handle : int
        What the library's functions take.

    Raises
    ------
    KafkaException
        If the name is longer than the library takes (512 bytes; brokers take 249).
    """

    def __init__(self, client: Client, name: str) -> None:
        self._hold = None
        handle = _new(client.handle, name.encode(), None)
        if handle is None:
            raise KafkaException(KafkaError(codes.UNKNOWN_TOPIC))
        assert client.hold is not None
        self.handle = int(handle)
        self._hold = client.hold
        self._hold.add(1)

    def __del__(self) -> None:
        """Let it go."""
        if self._hold is not None and not sys.is_finalizing():
            _destroy(self.handle)
            self._hold.remove(1)
