"""Video: encoded packets as rows, frames as payloads of flowgraphs, and the codecs between them."""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)
