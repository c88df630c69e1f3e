"""``hf.read``: the sources, each a function that gives a stream."""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)
