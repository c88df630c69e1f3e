"""``hf.flow``: the module, which is a function as well; the stub beside it is how type checkers see that."""

import sys

flow = sys.modules["holdfast.flow"]
