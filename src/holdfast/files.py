"""``hf.files``: what reads the files of ``hf.write.files`` outside of a pipeline."""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)
