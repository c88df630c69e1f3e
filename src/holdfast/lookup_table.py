"""``hf.lookup_table``: tables, in databases and directories, that ``hf.lookup`` loads, each a function."""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)
