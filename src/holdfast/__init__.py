"""Exactly-once pipelines on Spark Structured Streaming: ``import holdfast as hf``."""

from holdfast import later

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = later.names(__spec__)
