"""``hf.read``: the sources, each a function that returns a stream."""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__, of_connectors="read")
