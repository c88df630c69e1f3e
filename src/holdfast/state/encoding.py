"""Tables of state and changes of them as bytes, which are read without a copy.

A head (magic, count), then for each table its name, its size and one Arrow IPC stream at a multiple of 64.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pyarrow as pa

from holdfast.errors import Corrupt
from holdfast.state.step import Change

_MAGIC = b"HFTABLE1"
_HEAD = struct.Struct("<8sI")
_PART = struct.Struct("<HQ")
_ALIGNMENT = 64


def encode(tables: Mapping[str, pa.Table]) -> bytes:
    """Return named tables as bytes: a short head, then one Arrow IPC stream for each table, aligned for zero copies.

    Notes
    -----
    The same tables yield the same bytes, however they are divided into chunks.
    """
    parts: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, len(tables))]
    at = _HEAD.size
    for name, table in tables.items():
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        body = stream.getvalue()
        label = name.encode()
        head = _PART.pack(len(label), body.size) + label
        head += b"\0" * (-(at + len(head)) % _ALIGNMENT)
        parts += [head, memoryview(body)]
        at += len(head) + body.size
    return b"".join(parts)


def decode(data: bytes | pa.Buffer) -> dict[str, pa.Table]:
    """Return the tables that :func:`encode` wrote.  They are views of ``data``: nothing is copied.

    Raises
    ------
    Corrupt
        If the bytes are not such tables.
    """
    whole = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    view = memoryview(whole)
    tables: dict[str, pa.Table] = {}
    try:
        magic, count = _HEAD.unpack_from(view, 0)
        if magic != _MAGIC:
            raise ValueError(f"they begin with {magic!r} and not with {_MAGIC!r}")
        at = _HEAD.size
        for _ in range(count):
            label_size, size = _PART.unpack_from(view, at)
            at += _PART.size
            name = bytes(view[at : at + label_size]).decode()
            at += label_size
            at += -at % _ALIGNMENT
            if at + size > whole.size:
                raise ValueError(f"table {name!r} is truncated")
            with pa.ipc.open_stream(whole.slice(at, size)) as reader:
                tables[name] = reader.read_all()
            at += size
    except (ValueError, struct.error, OSError, pa.ArrowException) as error:
        raise Corrupt(
            f"{whole.size} bytes of stored state cannot be read.",
            why=str(error),
            do="restore the checkpoint from a copy, or start from the sinks' positions: holdfast rewind.",
        ) from error
    return tables


def encode_changes(changes: Mapping[str, Change]) -> bytes:
    """Return an epoch's changes as bytes, the delta to a base: see :func:`encode`."""
    parts: dict[str, pa.Table] = {}
    for name, change in changes.items():
        parts[f"-{name}"] = change.deletes
        parts[f"+{name}"] = change.upserts
    return encode(parts)


def decode_changes(data: bytes | pa.Buffer) -> dict[str, Change]:
    """Return the changes that :func:`encode_changes` wrote.

    Raises
    ------
    Corrupt
        If the bytes are not such changes.
    """
    parts = decode(data)
    return {name[1:]: Change(table, parts[f"-{name[1:]}"]) for name, table in parts.items() if name[0] == "+"}
