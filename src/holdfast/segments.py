"""``hf.segments``: policies that seal segments, and what reads them outside of a pipeline (``hf.write.segments``)."""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)
