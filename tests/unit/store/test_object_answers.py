"""What answers of object stores tell: those inside a 200, of proxies and clocks, and of keys that cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from botocore.exceptions import ClientError
from obstore.exceptions import GenericError

from holdfast.errors import InDoubt, InvalidPipeline, Unavailable
from holdfast.store.objects import store as module
from holdfast.store.objects.client import open_multipart_client
from holdfast.store.objects.errors import StoreAnswer, failure_of, failure_of_multipart, is_deleted
from holdfast.store.objects.store import ObjectStore, open_objects
from tests.http_servers import Quiet, serving_with
from tests.s3_proxy import HASTY, SLOW_DOWN, Fault, S3Proxy
from tests.s3_server import S3Bucket

pytestmark = pytest.mark.slow

OF_A_PROXY = Fault(503)
"""Without a code: Envoy, for instance, answers so when the store did not, whether it got the request or not."""


@pytest.fixture
def store(proxy: S3Proxy, s3_bucket: S3Bucket) -> ObjectStore:
    return open_objects(s3_bucket.address, HASTY)


WORDS = ["logs/InternalError.txt", "SlowDown", "<Error> of InternalError"]
"""Keys with words by which object_store takes the reply to a delete, which repeats them, for a failure."""


@pytest.mark.parametrize("key", WORDS)
def test_objects_whose_keys_read_like_failures_are_removed_by_one_request(
    store: ObjectStore, proxy: S3Proxy, key: str
) -> None:
    for doomed in ([key], ["a", key, "b"]):
        for each in doomed:
            store.put(each, b"1")
        proxy.requests.clear()
        store.delete_several(doomed)
        assert proxy.methods == ["POST"]
        assert store.keys("") == []


DELETED = "<Deleted><Key>some/place/InternalError</Key></Deleted>"
NOT_DELETED = (
    "<Error><Key>some/place/b</Key><Code>InternalError</Code><Message>We encountered an internal error.</Message>"
    "</Error>"
)


def failed_delete(*results: str) -> GenericError:
    """Return what obstore raises; then the same follows once more, as Rust shows it."""
    body = f'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(results)}</DeleteResult>'
    return GenericError(
        "Generic S3 error: Error performing POST https://s3.us-east-1.amazonaws.com/bucket?delete in 9.1849ms - "
        f"Server returned error response: {body}\n\nDebug source:\n..."
    )


class Scripted:
    """A client whose deletes raise what is in a list, and then succeed."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.sizes: list[int] = []

    def delete(self, keys: list[str] | str) -> None:
        self.sizes.append(1 if isinstance(keys, str) else len(keys))
        if self.errors:
            raise self.errors.pop(0)


def scripted(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> tuple[ObjectStore, Scripted]:
    client = Scripted(*errors)
    monkeypatch.setattr(module, "open_client", lambda *_, **__: client)
    return open_objects("s3://bucket/some/place", HASTY), client


def test_only_a_reply_that_names_no_failure_counts_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    store, client = scripted(monkeypatch, failed_delete(DELETED), failed_delete(DELETED))
    store.delete("InternalError")
    assert len(client.errors) == 1, "it was not sent again"
    store, client = scripted(monkeypatch, *[failed_delete(DELETED, NOT_DELETED)] * 2)
    store.delete_several(["InternalError", "b"])
    assert not client.errors, "it was sent again until both were gone"
    store, _ = scripted(monkeypatch, *[failed_delete(DELETED, NOT_DELETED)] * 3)
    with pytest.raises(InDoubt, match=r"the store answered InternalError \(We encountered an internal error\)"):
        store.delete_several(["InternalError", "b"])


def test_the_library_is_given_what_one_request_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given more it sends several, and stops at the first that fails: what counts as done is one and not the others."""
    store, client = scripted(monkeypatch, failed_delete(DELETED))
    store.delete_several([str(number) for number in range(2_001)])
    assert client.sizes == [1000, 1000, 1]
    store.delete_several([])
    assert len(client.sizes) == 3


def test_a_key_that_reads_like_a_reply_is_none() -> None:
    error = GenericError("Generic S3 error: Error performing POST x - HTTP error: request for <DeleteResult> failed")
    assert not is_deleted(error)


def test_absent_objects_of_google_keep_no_others_from_being_removed(google_store: str) -> None:
    """Google removes one with a request, and the library stops at the first that is not there."""
    store = open_objects(google_store, HASTY)
    kept = [f"k{number:02}" for number in range(15)]
    for key in kept:
        store.put(key, b"1")
    store.delete_several(["never there", *kept])
    assert store.keys("") == []


@pytest.mark.parametrize("other", ["", "<Deleted><Key>some/place/SlowDown</Key></Deleted>"])
def test_no_permission_to_delete_is_told_by_a_200_and_with_the_cure(s3_bucket: S3Bucket, other: str) -> None:
    """S3 answers for each key; a run is not to ask for minutes, and then be told that no answer came."""
    asked: list[str] = []

    class Denying(Quiet):
        def do_POST(self) -> None:
            asked.append(self.body().decode())
            data = (
                f"<DeleteResult>{other}<Error><Key>some/place/a</Key><Code>AccessDenied</Code>"
                "<Message>Access Denied</Message></Error></DeleteResult>"
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with serving_with(Denying) as port, pytest.MonkeyPatch.context() as here:
        here.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        store = open_objects(s3_bucket.address, HASTY)
        with pytest.raises(InvalidPipeline, match=r"the store answered AccessDenied \(Access Denied\)") as caught:
            store.delete("a")
    assert "permission to read, write, list and delete" in caught.value.do
    assert len(asked) == 2, "once more with the credentials of now"


def test_a_503_of_a_proxy_does_not_tell_and_one_of_the_store_does(store: ObjectStore, proxy: S3Proxy) -> None:
    proxy.faults += [("PUT", OF_A_PROXY)] * 3
    with pytest.raises(InDoubt, match="the store answered 503"):
        store.put("a", b"1")
    proxy.faults += [("PUT", SLOW_DOWN)] * 3
    with pytest.raises(Unavailable, match="503 SlowDown"):
        store.put("a", b"1")
    proxy.faults += [("PUT", replace(OF_A_PROXY, is_done=True))] * 3
    with pytest.raises(InDoubt):
        store.put_if_absent("b", b"1")
    assert store.put_if_absent("b", b"1")


def test_an_object_that_was_surely_not_created_and_is_there_is_recognised(store: ObjectStore, proxy: S3Proxy) -> None:
    """Who said that nothing was done was wrong: the next call, and no other, finds its own object."""
    proxy.faults += [("PUT", replace(SLOW_DOWN, is_done=True)), ("PUT", SLOW_DOWN), ("PUT", SLOW_DOWN)]
    with pytest.raises(Unavailable, match="503 SlowDown"):
        store.put_if_absent("a", b"1")
    assert not store.put_if_absent("a", b"2")
    assert store.put_if_absent("a", b"1")
    assert not store.put_if_absent("a", b"1")


def test_what_was_surely_not_created_twice_is_in_no_doubt(store: ObjectStore, proxy: S3Proxy) -> None:
    proxy.faults += [("PUT", SLOW_DOWN)] * 6
    for _ in range(2):
        with pytest.raises(Unavailable):
            store.put_if_absent("a", b"1")
    proxy.faults += [("PUT", OF_A_PROXY)] * 3
    with pytest.raises(InDoubt):
        store.put_if_absent("a", b"1")
    proxy.faults += [("PUT", SLOW_DOWN)] * 3
    with pytest.raises(InDoubt):
        store.put_if_absent("a", b"1")


@pytest.mark.parametrize(
    ("status", "code", "answer"),
    [
        (503, "503", StoreAnswer.UNKNOWN),
        (503, "ServiceUnavailable", StoreAnswer.UNKNOWN),
        (503, "SlowDown", StoreAnswer.NOT_DONE),
        (403, "RequestTimeTooSkewed", StoreAnswer.NOT_DONE),
        (403, "AccessDenied", StoreAnswer.FORBIDDEN),
        (429, "429", StoreAnswer.NOT_DONE),
    ],
)
def test_both_libraries_tell_the_same_of_a_status(status: int, code: str, answer: StoreAnswer) -> None:
    said = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert failure_of_multipart(ClientError(said, "UploadPart")).answer is answer
    body = "upstream connect error" if code.isdecimal() else f"<Error><Code>{code}</Code></Error>"
    text = f"Generic S3 error: Error performing PUT x in 1ms - Server returned non-2xx status code: {status} X: {body}"
    assert failure_of(GenericError(text)).answer is answer


def test_a_clock_that_is_wrong_passes_and_is_named(store: ObjectStore, proxy: S3Proxy) -> None:
    """A machine that woke up sets it right; until then the store's own sentence says what it is about."""
    skewed = ("PUT", Fault(403, "RequestTimeTooSkewed"))
    proxy.faults += [skewed] * 2
    store.put("a", b"1")
    proxy.faults += [skewed] * 3
    with pytest.raises(Unavailable, match=r"403 RequestTimeTooSkewed \(as the test wants it\)"):
        store.put("a", b"2")
    assert not proxy.faults


@pytest.mark.parametrize("key", ["q//b", "q/../b"])
def test_a_key_of_others_that_cannot_be_read_is_told_with_what_to_do(
    store: ObjectStore, proxy: S3Proxy, s3_bucket: S3Bucket, key: str
) -> None:
    others = open_multipart_client(s3_bucket.address, timeout_s=5)
    others.put_object(Bucket=s3_bucket.name, Key=f"some/place/{key}", Body=b"")
    for look in (lambda: store.keys(""), store.first_keys):
        proxy.requests.clear()
        with pytest.raises(InvalidPipeline, match="has an empty part") as caught:
            look()
        assert "move such objects away" in caught.value.do
        assert "choose another path" in caught.value.do
        assert proxy.methods == ["GET"], "asking again changes nothing"
    assert store.keys("r/") == []
