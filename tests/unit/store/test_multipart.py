"""Multipart uploads: what is told of parts whose tags are written in two ways, and of a 503 that is no store's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import InDoubt, Unavailable
from holdfast.store.objects.multipart import MultipartUploads, Upload, UploadState
from tests.s3_proxy import HASTY, SLOW_DOWN, Fault, S3Proxy
from tests.s3_server import S3Bucket

pytestmark = pytest.mark.slow

COMPLETE = "POST uploadId="


@pytest.fixture
def uploads(proxy: S3Proxy, s3_bucket: S3Bucket) -> MultipartUploads:
    return MultipartUploads(s3_bucket.address, HASTY)


@pytest.fixture
def upload(uploads: MultipartUploads) -> Upload:
    upload_id = uploads.create("a")
    return Upload("a", upload_id, (uploads.put_part("a", upload_id, 1, b"rows"),), 4)


def test_tags_of_parts_are_compared_without_their_quotes(uploads: MultipartUploads, upload: Upload) -> None:
    """Some stores put them around a tag in the reply to a part, and not in a list of parts."""
    (etag,) = upload.etags
    assert etag == f'"{etag[1:-1]}"', "what the store said is kept as it is"
    assert uploads.is_whole(upload)
    assert uploads.is_whole(replace(upload, etags=(etag[1:-1],)))
    assert not uploads.is_whole(replace(upload, etags=(etag[1:-2],)))
    assert not uploads.is_whole(replace(upload, etags=(etag, etag)))


def test_a_503_of_a_proxy_leaves_a_complete_in_doubt(uploads: MultipartUploads, upload: Upload, proxy: S3Proxy) -> None:
    proxy.faults += [(COMPLETE, SLOW_DOWN)] * 3
    with pytest.raises(Unavailable, match="503 SlowDown"):
        uploads.complete(upload)
    proxy.faults += [(COMPLETE, Fault(503))] * 3
    with pytest.raises(InDoubt, match="503"):
        uploads.complete(upload)
    assert uploads.state(upload) is UploadState.OPEN
    proxy.faults += [(COMPLETE, Fault(503, is_done=True))]
    assert uploads.complete(upload)
