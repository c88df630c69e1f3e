"""Snapshots in the store: written file by file, committed by one manifest, verified, pruned.

Durable writes, in this order: the files of buckets that changed; the manifest; then what is no longer needed is
removed. A snapshot counts once its manifest is there.  Files are named by the digest of the bucket, so one that did not
change is not written again, and what a crash left is used by the next snapshot or pruned with it.

Nothing here reads Spark: where state comes from is :class:`Bucket`, whatever makes it.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.checkpoint import named
from holdfast.checkpoint.manifest import PREFIX, BucketState, Manifest, SnapshotKey, TableFile, damaged, decode, encode
from holdfast.errors import Corrupt, invariant
from holdfast.ports import Store
from holdfast.state.tables import fitted
from holdfast.store import sealed

log = logging.getLogger("holdfast.checkpoint")

FILES = f"{PREFIX}files/"


@dataclass(frozen=True)
class Bucket:
    """The state of one bucket, in memory.

    Parameters
    ----------
    operator : str
        Whose it is.
    number : int
        The bucket.
    version, digest, feeds
        As in :class:`~holdfast.checkpoint.manifest.BucketState`.
    tables : mapping of str to pa.Table
        Every state table.
    """

    operator: str
    number: int
    version: int
    digest: str
    feeds: Mapping[str, Mapping[str, int]]
    tables: Mapping[str, pa.Table]


def write_bucket(store: Store, bucket: Bucket, below: str = "") -> BucketState:
    """Write the tables of a bucket as Parquet files, and return what the manifest says of it.

    A table without rows has no file.  A file that is there already is replaced by the same bytes: it may be damaged.
    Its name says of what they are: see :func:`file_key`; ``below`` stands before it.
    """
    files = {}
    for name, table in bucket.tables.items():
        if not table.num_rows:
            continue
        data = to_parquet(table)
        checksum = hashlib.sha256(data).hexdigest()
        key = below + file_key(bucket, name, checksum)
        store.put(key, data)
        files[name] = TableFile(key, checksum, len(data), table.num_rows)
    return BucketState(bucket.version, bucket.digest, bucket.feeds, files)


def write_part(store: Store, bucket: Bucket, run: str) -> None:
    """Write the files of a bucket, then a note of them, which says that they are whole: see :func:`read_part`."""
    state = write_bucket(store, bucket)
    files = {name: [file.key, file.sha256, file.size_bytes, file.rows] for name, file in state.files.items()}
    store.put(part_key(bucket.operator, bucket.number, bucket.version, bucket.digest, run), sealed.dump(files))


def read_part(store: Store, operator: str, number: int, of: BucketState, run: str) -> BucketState | None:
    """Return a bucket with the files that :func:`write_part` wrote of it in a run; None where it has not, or not yet.

    Notes
    -----
    A note of another run says nothing.  Its files may be gone: pruning removes one after the other, may be killed
    between two, and a worker that outlives its driver may write its report after it.
    """
    data = store.get(part_key(operator, number, of.version, of.digest, run))
    if data is None:
        return None
    try:
        return replace(of, files={name: TableFile(*file) for name, file in sealed.load(data).items()})
    except (ValueError, TypeError):
        return None


def part_key(operator: str, bucket: int, version: int, digest: str, run: str) -> str:
    """Return the key of the note of a bucket's files."""
    return f"{FILES}{operator}/{bucket}/{version:012d}-{digest}.{run}.part"


def file_key(bucket: Bucket, table: str, checksum: str) -> str:
    """Return the key of the file of one table.

    The checksum is in it: another version of the Parquet library produces other bytes for the same rows, and they must
    not replace those that an older manifest names.
    """
    version = f"{bucket.version:012d}-{bucket.digest}"
    return f"{FILES}{bucket.operator}/{bucket.number}/{version}.{table}.{checksum[:16]}.parquet"


def to_parquet(table: pa.Table) -> bytes:
    """Return a table as a Parquet file; the same table yields the same bytes, however it is divided into chunks.

    Notes
    -----
    Measured with 500 000 rows of four numbers, CPU seconds with checksum and writing: zstd and dictionaries 0.18, lz4
    without these and statistics 0.07, uncompressed 0.08 and a third more bytes for the disk.
    """
    import pyarrow.parquet as pq  # a fifth of the time in which a worker starts, and few of them need it

    out = io.BytesIO()
    pq.write_table(table.combine_chunks(), out, compression="lz4", use_dictionary=False, write_statistics=False)
    return out.getvalue()


def from_parquet(data: bytes, schema: pa.Schema, key: str) -> pa.Table:
    """Return the table of a Parquet file under the schema that its manifest declares.

    Raises
    ------
    Corrupt
        If it has other columns.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    if sorted(table.schema.names) != sorted(schema.names):
        raise damaged(key, f"it has the columns {table.schema.names}, and the manifest says {schema.names}")
    # Parquet knows neither all of Arrow's types nor nullability within them; the stored Arrow schema restores most.
    return fitted(table, schema)


def checked(data: bytes | None, file: TableFile) -> bytes:
    """Return the bytes of a file if they are those that the manifest names.

    Raises
    ------
    Corrupt
        If it is missing, cut or changed.
    """
    if data is None:
        raise damaged(file.key, "it is missing, and a snapshot needs it")
    if len(data) != file.size_bytes:
        raise damaged(file.key, f"it has {len(data)} bytes, and the manifest says {file.size_bytes}")
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise damaged(file.key, "its checksum does not match: it was changed")
    return data


def commit(store: Store, manifest: Manifest) -> None:
    """Make a snapshot count.  Its files are there."""
    check(manifest)
    store.put(manifest.key.path, encode(manifest))


def check(manifest: Manifest) -> None:
    """Stop unless a manifest names what a snapshot of its epoch can hold; the files themselves are not read."""
    for name, operator in manifest.operators.items():
        for number, bucket in operator.buckets.items():
            strangers = bucket.files.keys() - operator.schema.tables.keys()
            for condition, what in (
                (0 <= number < manifest.buckets, f"bucket {number} of {manifest.buckets}"),
                (bucket.version <= manifest.ended.step_epoch, f"version {bucket.version} of bucket {number}"),
                (not strangers, f"a file of the state tables {sorted(strangers)}"),
                (bucket.version > 0 or not bucket.files, f"rows under version 0 in bucket {number}"),
                (all(file.rows > 0 for file in bucket.files.values()), f"a file without rows in bucket {number}"),
            ):
                invariant(
                    condition,
                    f"the snapshot of epoch {manifest.ended.epoch} is to name {what} of operator {name!r}.",
                    why=f"it is the state at the end of step epoch {manifest.ended.step_epoch}.",
                    pipeline=manifest.pipeline,
                    participant=name,
                    epoch=manifest.ended.epoch,
                    generation=manifest.generation,
                )


def snapshot_keys(store: Store) -> list[SnapshotKey]:
    """Return all snapshots, oldest first."""
    found = (SnapshotKey.from_path(path) for path in store.keys(PREFIX))
    return sorted(key for key in found if key is not None)


def read_manifest(store: Store, key: SnapshotKey) -> Manifest:
    """Return a manifest.

    Raises
    ------
    Corrupt
        If it is missing or damaged.
    """
    return decode(store.get(key.path) or b"", key.path)


def newest_buckets(store: Store) -> int:
    """Return into how many buckets the state of the newest snapshot is divided; 0 when there is none."""
    for key in reversed(snapshot_keys(store)):
        try:
            return read_manifest(store, key).buckets
        except Corrupt:
            continue  # logged where a snapshot is chosen
    return 0


def verify(store: Store, manifest: Manifest) -> None:
    """Read every file of a snapshot.

    Raises
    ------
    Corrupt
        At the first that is missing, cut or changed.
    """
    for file in manifest.files:
        checked(store.get(file.key), file)


def good_snapshots(store: Store, refused: Callable[[SnapshotKey, str], None]) -> Iterator[Manifest]:
    """Yield the snapshots that can be used, newest first; what is wrong with the others is reported.

    Parameters
    ----------
    store : Store
        The checkpoint.
    refused : callable
        Called for each that is skipped, with the reason.
    """
    for key in reversed(snapshot_keys(store)):
        try:
            manifest = read_manifest(store, key)
            verify(store, manifest)
        except Corrupt as error:
            refused(key, error.message)
            continue
        yield manifest


def prune(
    store: Store,
    *,
    keep: int,
    pinned: frozenset[SnapshotKey] = frozenset(),
    check_fenced: Callable[[], None] = lambda: None,
) -> SnapshotKey | None:
    """Remove all snapshots but the newest, and the files that neither these nor named checkpoints need.

    Parameters
    ----------
    store : Store
        The checkpoint.
    keep : int
        How many stay; at least 1.
    pinned : frozenset of SnapshotKey
        Those whose manifest and files stay in any case.
    check_fenced : callable, optional
        Raises ``Fenced`` if another run has taken over, whose snapshots this one does not know.

    Returns
    -------
    SnapshotKey, optional
        The oldest of the newest; None where none can be read.

    Notes
    -----
    A manifest that cannot be read does not count as one of ``keep``; it goes once those are newer.  Manifests
    go before their files, so that no crash leaves one that names a file which is gone.  Files of a later version than
    the newest snapshot stay: workers write them for the next one.  What is removed was there before the manifests were
    read: a snapshot that is committed meanwhile has written its files after that, or this run is fenced.
    """
    files = store.keys(FILES)
    readable: dict[SnapshotKey, Manifest] = {}
    keys = snapshot_keys(store)
    for key in keys:
        try:
            readable[key] = read_manifest(store, key)
        except Corrupt as error:
            log.warning("%s", error.message)
    newest = sorted(readable)[-keep:]
    if not newest:
        return None
    stay = {*newest, *(key for key in pinned if key in readable)}
    check_fenced()
    for key in keys:
        if key not in stay and (key in readable or key < newest[0]):
            store.delete(key.path)
    try:
        kept = [*(readable[key] for key in stay), *named.named_manifests(store)]
    except Corrupt as error:
        log.warning("no file of a snapshot is removed: %s", error.message)
        return newest[0]
    needed = {file.key for manifest in kept for file in manifest.files}
    reached = readable[newest[-1]].ended.step_epoch
    check_fenced()
    for path in files:
        if path not in needed and _version(path) <= reached:
            store.delete(path)
    return newest[0]


def _version(path: str) -> int:
    """Return the version in the name of a file; 0 for names that are not ours."""
    version = path.rpartition("/")[2].partition("-")[0]
    return int(version) if version.isdigit() else 0
