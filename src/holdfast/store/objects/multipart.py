"""Multipart uploads to S3: written by one process, completed by another, found by name (design/0040).

Invariants.  An upload is completed at most once; until then no reader sees a byte of it, and after it the object is
whole.  What a request of which no answer came has done is asked of the store, and never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from holdfast.store.objects.client import open_multipart_client
from holdfast.store.objects.errors import (
    RequestLimits,
    Requests,
    StoreAnswer,
    failure_of_multipart,
    of_multipart_server,
)

PART_BYTES = 8 * 2**20
"""Of each part but the last, always: S3 asks for at least 5 MiB, and some stores want all of them to be equal."""


_NOT_ASKED = (StoreAnswer.FORBIDDEN, StoreAnswer.EXPIRED, StoreAnswer.NO_CREDENTIALS)
"""Answers of a request that was surely not done."""


class UploadState(Enum):
    """What has become of an upload."""

    OPEN = "open"
    DONE = "its object is there"
    GONE = "neither the upload nor its object is there"


@dataclass(frozen=True)
class Upload:
    """An upload whose parts are all there: what is needed to complete it.

    Parameters
    ----------
    key : str
        Of the object, relative to the address.  No other upload has it: whoever finds the object has found this.
    upload_id : str
        The store's.
    etags : tuple of str
        Of the parts, in order.
    size_bytes : int
        Of all of them.
    """

    key: str
    upload_id: str
    etags: tuple[str, ...]
    size_bytes: int


class MultipartUploads:
    """The multipart uploads below an address.  Safe between threads and processes; can be pickled.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``.
    limits : RequestLimits
        How long it tries.

    Notes
    -----
    One request each; :meth:`all` and :meth:`is_whole` one for a thousand uploads or parts, :meth:`complete` up to three
    more where its reply is lost.
    """

    def __init__(self, address: str, limits: RequestLimits) -> None:
        self.address = address.rstrip("/")
        self._limits = limits
        parts = urlsplit(self.address)
        self._bucket = parts.netloc
        self._prefix = f"{path}/" if (path := parts.path.strip("/")) else ""
        self._requests = Requests(
            self.address,
            limits,
            lambda timeout_s: open_multipart_client(self.address, timeout_s=timeout_s),
            of_multipart_server,
            failure_of_multipart,
        )

    def __repr__(self) -> str:
        return f"MultipartUploads({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return MultipartUploads, (self.address, self._limits)

    def create(self, key: str) -> str:
        """Begin an upload; return its id.

        One whose reply is lost stays behind: it is found by its key.
        """

        def create(client: Any) -> str:
            return str(client.create_multipart_upload(**self._place(key))["UploadId"])

        return self._requests.call(create, f"beginning the upload of {self._path(key)}")

    def put_part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        """Write a part, numbered from 1; return its ETag.  Again is safe."""

        def put(client: Any) -> str:
            reply = client.upload_part(**self._place(key), UploadId=upload_id, PartNumber=number, Body=data)
            return str(reply["ETag"])

        return self._requests.call(put, f"uploading part {number} of {self._path(key)}")

    def complete(self, upload: Upload) -> bool:
        """Make the object of an upload visible; False if neither the upload nor the object is there.

        Again is safe, in whatever process.

        Raises
        ------
        Unavailable
            If it is surely not visible.
        InDoubt
            If that is unknown.
        """
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(upload.etags, 1)]

        def complete(client: Any) -> bool:
            try:
                client.complete_multipart_upload(
                    **self._place(upload.key), UploadId=upload.upload_id, MultipartUpload={"Parts": parts}
                )
            except of_multipart_server() as error:
                if failure_of_multipart(error).answer in _NOT_ASKED:
                    raise
                state = self._state(client, upload)
                if state is UploadState.OPEN:
                    raise
                return state is UploadState.DONE
            return True

        return self._requests.call(complete, f"completing the upload of {self._path(upload.key)}", is_write=True)

    def abort(self, key: str, upload_id: str) -> None:
        """End an upload and drop its parts; gone is fine."""

        def abort(client: Any) -> None:
            try:
                client.abort_multipart_upload(**self._place(key), UploadId=upload_id)
            except of_multipart_server() as error:
                if failure_of_multipart(error).answer is not StoreAnswer.ABSENT:
                    raise

        self._requests.call(abort, f"aborting the upload of {self._path(key)}")

    def is_whole(self, upload: Upload) -> bool:
        """Return whether an upload is open and has the parts that it should."""

        def whole(client: Any) -> bool:
            parts = self._parts(client, upload.key, upload.upload_id)
            if parts is None:
                return False
            found = {part["PartNumber"]: (_bare(part["ETag"]), part["Size"]) for part in parts}
            etags = [found[number][0] for number in sorted(found)]
            is_same = etags == [_bare(etag) for etag in upload.etags]
            return is_same and sum(size for _, size in found.values()) == upload.size_bytes

        return self._requests.call(whole, f"asking for the upload of {self._path(upload.key)}")

    def state(self, upload: Upload) -> UploadState:
        """Ask what has become of an upload."""
        return self._requests.call(
            lambda client: self._state(client, upload), f"asking for the upload of {self._path(upload.key)}"
        )

    def all(self) -> list[tuple[str, str]]:
        """Return key and id of every open upload below the address, whoever began it, sorted.  It may lag."""

        def found(client: Any) -> list[tuple[str, str]]:
            asked: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix}
            several: list[tuple[str, str]] = []
            while True:
                reply = client.list_multipart_uploads(**asked)
                for each in reply.get("Uploads", ()):
                    several.append((each["Key"].removeprefix(self._prefix), each["UploadId"]))
                if not reply.get("IsTruncated"):
                    return sorted(several)
                asked |= {"KeyMarker": reply["NextKeyMarker"], "UploadIdMarker": reply["NextUploadIdMarker"]}

        return self._requests.call(found, f"listing the uploads of {self.address}")

    def _state(self, client: Any, upload: Upload) -> UploadState:
        if self._is_there(client, upload.key):
            return UploadState.DONE
        if next(iter(self._parts(client, upload.key, upload.upload_id) or ()), None) is not None:
            return UploadState.OPEN
        # Between the two questions somebody else may have completed it.
        return UploadState.DONE if self._is_there(client, upload.key) else UploadState.GONE

    def _is_there(self, client: Any, key: str) -> bool:
        try:
            client.head_object(**self._place(key))
        except of_multipart_server() as error:
            if failure_of_multipart(error).answer is StoreAnswer.ABSENT:
                return False
            raise
        return True

    def _parts(self, client: Any, key: str, upload_id: str) -> list[dict[str, Any]] | None:
        try:
            return list(_pages(client, self._place(key) | {"UploadId": upload_id}))
        except of_multipart_server() as error:
            if failure_of_multipart(error).answer is StoreAnswer.ABSENT:
                return None
            raise

    def _place(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}{key}"}

    def _path(self, key: str) -> str:
        return f"{self.address}/{key}"


def _bare(etag: str) -> str:
    """Return an ETag without its quotes: some stores put them around it in one reply, and not in another."""
    return etag.strip('"')


def _pages(client: Any, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        reply = client.list_parts(**asked)
        yield from reply.get("Parts", ())
        if not reply.get("IsTruncated"):
            return
        asked |= {"PartNumberMarker": reply["NextPartNumberMarker"]}
