"""Calculators that many graphs need: flow limiter, gate, loops, clocks."""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)
