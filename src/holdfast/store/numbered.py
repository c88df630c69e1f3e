"""Objects of a store that are named by a number, ``<prefix><digits>.json``: they are in the order of the numbers.

The digits are padded for readability.  As text they are in order only while the padding lasts: ``100000000`` sorts
before ``99999999``, and the older object would be mistaken for the newest.
"""

from __future__ import annotations

from holdfast.ports import Store


def numbered(store: Store, prefix: str) -> dict[int, str]:
    """Return number -> key of every such object, in ascending order; other keys are left out."""
    names = ((path, path.rpartition("/")[2].removesuffix(".json")) for path in store.keys(prefix))
    return dict(sorted((int(name), path) for path, name in names if name.isdigit()))
