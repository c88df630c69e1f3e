"""``hf.write``: the sinks, each a function that declares one; to be used to the right of ``stream |``."""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__, of_connectors="write")
