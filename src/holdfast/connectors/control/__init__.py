"""Control rows: rows that are commands to their sink, carried out in order with the rows of data (design/0020).

``hf.control`` is this package: what writes commands.
"""

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)
