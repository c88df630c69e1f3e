"""A lease as the text that is stored."""

from __future__ import annotations

import json
from dataclasses import asdict

from holdfast.ports import Lease

TABLE = "holdfast_lease"


def dumped(lease: Lease) -> str:
    """Return a lease as JSON."""
    return json.dumps(asdict(lease), sort_keys=True)


def loaded(text: str) -> Lease:
    """Return the lease of a text that :func:`dumped` wrote; fields of a later version are ignored.

    Examples
    --------
    >>> lease = Lease(1, "t", "main", "host", 7, 1_000_000)
    >>> loaded(dumped(lease)) == lease
    True
    """
    value = json.loads(text)
    return Lease(**{name: value[name] for name in Lease.__dataclass_fields__ if name in value})
