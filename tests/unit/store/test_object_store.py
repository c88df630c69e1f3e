"""The store of objects on S3: what lost replies, conflicts, throttling, slow answers and old credentials do."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.errors import HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.retry import RetriedStore, Retrier, RetryPolicy
from holdfast.store.objects.errors import RequestLimits
from holdfast.store.objects.multipart import MultipartUploads
from holdfast.store.objects.store import ObjectStore, open_objects
from holdfast.testing import SimulatedClock
from tests.http_servers import Quiet, serving_with
from tests.s3_proxy import (
    AT_ONCE,
    CONFLICT,
    DENIED,
    DROPPED,
    FAILED_AFTER,
    HASTY,
    REPLY_LOST,
    SLOW_DOWN,
    Fault,
    Request,
    S3Proxy,
    s3_proxy,
)
from tests.s3_server import S3Bucket

pytestmark = pytest.mark.slow

LOST = [("PUT", REPLY_LOST)]


@pytest.fixture
def store(proxy: S3Proxy, s3_bucket: S3Bucket) -> ObjectStore:
    return open_objects(s3_bucket.address, HASTY)


@pytest.fixture
def other(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Another process, with a network of its own."""
    with monkeypatch.context() as here:
        here.setenv("AWS_ENDPOINT_URL", s3_bucket.endpoint)
        return open_objects(s3_bucket.address, HASTY)


def test_requests_are_as_many_as_is_documented(store: ObjectStore, proxy: S3Proxy) -> None:
    assert store.put_if_absent("a", b"1")
    store.put("a", b"2")
    assert store.get("a") == b"2"
    assert store.get("b") is None
    store.keys("")
    store.delete("a")
    store.delete_several(["a", "b", "c"])
    assert proxy.methods == ["PUT", "PUT", "GET", "GET", "GET", "POST", "POST"]
    proxy.requests.clear()
    store.put("a", b"3")
    assert not store.put_if_absent("a", b"4")
    assert proxy.methods == ["PUT", "PUT", "GET"]


@pytest.mark.parametrize("loss", [REPLY_LOST, FAILED_AFTER])
def test_a_put_whose_reply_was_lost_has_won(
    store: ObjectStore, other: ObjectStore, proxy: S3Proxy, loss: Fault
) -> None:
    """Sent again it is refused: the object is there, and it is ours."""
    proxy.faults += [("PUT", loss)] * 2
    assert store.put_if_absent("a", b"same")
    assert not other.put_if_absent("a", b"same")
    assert not store.put_if_absent("a", b"same")
    assert not proxy.faults


def test_a_put_that_never_arrived_loses_against_the_same_bytes_of_another(
    store: ObjectStore, other: ObjectStore, proxy: S3Proxy
) -> None:
    """The bytes do not tell who was first; the token does."""
    proxy.faults.append(("PUT", DROPPED))
    proxy.before = lambda request: _write_once(proxy, other, request)
    assert not store.put_if_absent("a", b"same")


def _write_once(proxy: S3Proxy, other: ObjectStore, _: Request) -> None:
    proxy.before = lambda _: None
    assert other.put_if_absent("a", b"same")


def test_a_put_whose_outcome_stays_unknown_is_in_doubt_and_the_next_call_finds_out(
    store: ObjectStore, proxy: S3Proxy
) -> None:
    proxy.faults += [("PUT", REPLY_LOST), ("PUT", DROPPED), ("PUT", DROPPED)]
    with pytest.raises(InDoubt, match="whether it was done is unknown"):
        store.put_if_absent("a", b"1")
    assert store.put_if_absent("a", b"1")
    assert not store.put_if_absent("a", b"1")


def test_a_lost_reply_and_then_no_permission_to_look_is_in_doubt(store: ObjectStore, proxy: S3Proxy) -> None:
    proxy.faults += [*LOST, ("GET", DENIED), ("GET", DENIED), ("GET", DENIED)]
    with pytest.raises(InDoubt):
        store.put_if_absent("a", b"1")


def test_two_threads_that_go_on_with_the_same_doubt_do_not_both_win(store: ObjectStore, proxy: S3Proxy) -> None:
    proxy.faults += [("PUT", DROPPED)] * 3
    with pytest.raises(InDoubt):
        store.put_if_absent("a", b"1")
    won: list[bool] = []
    threads = [threading.Thread(target=lambda: won.append(store.put_if_absent("a", b"1"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, False, False, True]


def test_a_conflict_is_no_loss(store: ObjectStore, proxy: S3Proxy) -> None:
    """S3 answers 409 while another request for the key is under way: which of them wins is not said."""
    proxy.faults.append(("PUT", CONFLICT))
    assert store.put_if_absent("a", b"1")
    proxy.faults += [("PUT", CONFLICT)] * 3
    with pytest.raises(Unavailable, match="409 ConditionalRequestConflict"):
        store.put_if_absent("b", b"1")
    assert store.put_if_absent("b", b"1")
    proxy.faults += [("PUT", CONFLICT)] * 2
    store.put("b", b"2")
    assert store.get("b") == b"2"


def test_a_throttled_store_is_asked_again_with_bounds(store: ObjectStore, proxy: S3Proxy) -> None:
    store.put("a", b"1")
    for method in ("PUT", "GET"):
        proxy.faults += [(method, SLOW_DOWN)] * 2
    store.put("a", b"2")
    assert store.get("a") == b"2"
    proxy.faults += [("PUT", SLOW_DOWN)] * 3
    with pytest.raises(Unavailable, match="503 SlowDown"):
        store.put_if_absent("b", b"1")
    assert not proxy.faults
    assert store.get("b") is None


def test_a_store_that_has_answered_is_waited_for_longer(proxy: S3Proxy, s3_bucket: S3Bucket) -> None:
    """In a run not every caller tries again; a start is to say soon that nothing answers at an address."""
    store = open_objects(s3_bucket.address, replace(HASTY, answered=replace(AT_ONCE, attempts=9)))
    proxy.faults += [("GET", DROPPED)] * 11
    with pytest.raises(Unavailable):
        store.get("a")
    assert (len(proxy.faults), len(proxy.requests)) == (8, 3)
    proxy.faults[:] = []
    store.put("a", b"1")
    proxy.faults += [("GET", DROPPED)] * 8
    assert store.get("a") == b"1"
    assert not proxy.faults


def test_a_slow_answer_is_waited_for_and_one_that_never_comes_is_in_doubt(proxy: S3Proxy, s3_bucket: S3Bucket) -> None:
    hasty = open_objects(s3_bucket.address, RequestLimits(RetryPolicy(1), RetryPolicy(1), timeout_s=1))
    hasty.put("a", b"1")
    slow = Fault(200, is_done=True, delay_s=3)
    proxy.faults.append(("PUT", slow))
    with pytest.raises(InDoubt, match="no answer came in time"):
        hasty.put("a", b"2")
    proxy.faults.append(("PUT", slow))
    with pytest.raises(InDoubt):
        hasty.put_if_absent("b", b"1")
    assert hasty.put_if_absent("b", b"1")
    proxy.faults.append(("PUT", replace(slow, delay_s=0.05)))
    hasty.put("a", b"3")
    assert hasty.get("a") == b"3"


def test_nothing_depends_on_a_listing_that_lags(store: ObjectStore, proxy: S3Proxy) -> None:
    store.put("n/1", b"1")
    assert store.keys("n/") == ["n/1"]
    proxy.are_listings_old = True
    assert store.put_if_absent("n/2", b"2")
    store.delete("n/1")
    assert store.keys("n/") == ["n/1"]
    assert store.get("n/2") == b"2"
    assert store.get("n/1") is None
    assert not store.put_if_absent("n/2", b"3")


def test_deleting_is_repeated_until_it_is_answered(store: ObjectStore, proxy: S3Proxy) -> None:
    store.put("a", b"1")
    proxy.faults += [("POST", REPLY_LOST), ("POST", SLOW_DOWN)]
    store.delete("a")
    assert store.get("a") is None
    proxy.faults += [("POST", DROPPED)] * 3
    with pytest.raises(InDoubt):
        store.delete("a")


def test_the_patient_store_goes_on_until_it_is_known(store: ObjectStore, proxy: S3Proxy) -> None:
    retrier = Retrier(RetryPolicy(attempts=4), SimulatedClock(), on_retry=lambda *_: None)
    retried = RetriedStore(store, retrier)
    proxy.faults += [*LOST, *[("PUT", DROPPED)] * 5]
    assert retried.put_if_absent("a", b"1")
    assert not retried.put_if_absent("a", b"2")


def test_credentials_of_the_environment_that_expired_are_read_again(
    store: ObjectStore, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"1")
    proxy.accepts = lambda key: key == "renewed"
    with pytest.raises(InvalidPipeline, match="ExpiredToken") as caught:
        store.get("a")
    assert "renew the credentials" in caught.value.do
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    assert store.get("a") == b"1"
    assert store.put_if_absent("b", b"1")


def test_credentials_that_expire_in_a_run_are_looked_up_until_they_are_new(
    store: ObjectStore, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login, or what writes the file, may be slower than one request."""
    store.put("a", b"1")
    seen = len(proxy.requests)

    def renew(key: str) -> bool:
        if len(proxy.requests) == seen + 3:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
        return key == "renewed"

    proxy.accepts = renew
    assert store.get("a") == b"1"
    assert len(proxy.requests) > seen + 3


def test_a_profile_that_was_renewed_is_read_again(
    proxy: S3Proxy, s3_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[team]\naws_access_key_id = first\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = open_objects(s3_bucket.address, HASTY)
    store.put("a", b"1")
    file.write_text("[team]\naws_access_key_id = second\naws_secret_access_key = x\n")
    proxy.accepts = lambda key: key == "second"
    assert store.get("a") == b"1"
    assert {request.key_id for request in proxy.requests} == {"first", "second"}
    monkeypatch.setenv("AWS_PROFILE", "unknown")
    with pytest.raises(InvalidPipeline, match="profile"):
        open_objects(s3_bucket.address)


def test_the_credentials_of_a_role_are_fetched_anew_before_they_expire(
    proxy: S3Proxy, s3_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore does that, for containers here: each answer says that it ends in a minute."""
    given: list[str] = []

    class Role(Quiet):
        def do_GET(self) -> None:
            given.append(f"key{len(given)}")
            fields = {"AccessKeyId": given[-1], "SecretAccessKey": "x", "Token": "t", "Expiration": _soon()}
            data = json.dumps(fields).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    (tmp_path / "token").write_text("t")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with serving_with(Role) as port:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/role")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        store = open_objects(s3_bucket.address, HASTY)
        store.put("a", b"1")
        proxy.accepts = lambda key: key == given[-1]
        end = time.monotonic() + 30  # obstore asks again a tenth of a second after the last answer, at the earliest
        while len(given) < 3 and time.monotonic() < end:
            assert store.get("a") == b"1"
    assert len(given) >= 3


def _soon() -> str:
    return (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_no_permission_is_told_with_the_cure_and_no_secret(
    store: ObjectStore, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for call in (lambda: store.put_if_absent("a", b"1"), lambda: store.put("a", b"1")):
        proxy.faults += [("PUT", DENIED)] * 2
        with pytest.raises(InvalidPipeline, match="403 AccessDenied") as caught:
            call()
        assert "permission to read, write, list and delete" in caught.value.do
        assert "hunter2" not in repr(caught.value) + str(caught.value)
        assert not proxy.faults


def test_a_missing_bucket_is_told_with_the_cure(proxy: S3Proxy) -> None:
    store = open_objects("s3://no-such-bucket/x", HASTY)
    for call in (lambda: store.get("a"), lambda: store.keys(""), lambda: store.put_if_absent("a", b"1")):
        with pytest.raises(InvalidPipeline, match="NoSuchBucket") as caught:
            call()
        assert "create the bucket" in caught.value.do


def test_no_server_is_unavailable_and_nothing_is_in_doubt(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store = open_objects(s3_bucket.address, HASTY)
    for call in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(Unavailable, match="nothing answers there"):
            call()


class _Metadata(Quiet):
    """What a machine without a role answers, in the place of 169.254.169.254."""

    def do_PUT(self) -> None:
        self.send_error(404)

    do_GET = do_PUT


def test_no_credentials_at_all_are_told_with_the_variables_to_set(
    s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's role is asked then, at an address that most machines do not reach."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with serving_with(_Metadata) as port:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}/169.254.169.254")
        store = open_objects(s3_bucket.address, HASTY)
        with pytest.raises(InvalidPipeline, match="no credentials are in the variables") as caught:
            store.get("a")
    assert "set AWS_ACCESS_KEY_ID" in caught.value.do
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.do


def test_credentials_that_are_away_after_they_were_there_are_waited_for(
    store: ObjectStore, proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run does not end because a role, or a login, does not answer for a moment."""
    store.put("a", b"1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    proxy.accepts = lambda key: key == "renewed"
    with serving_with(_Metadata) as port:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}/169.254.169.254")
        with pytest.raises(Unavailable, match="no credentials"):
            store.get("a")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert store.get("a") == b"1"


def test_a_defect_of_ours_is_no_answer_of_the_store(store: ObjectStore, proxy: S3Proxy) -> None:
    """A key that no store takes is refused by the library: asking again would hide it, and doubt would be told."""
    with pytest.raises(ValueError, match="empty path segment"):
        store.put_if_absent("a//b", b"1")
    with pytest.raises(TypeError, match="a bytes-like object is required"):
        store.put("a", [1])  # type: ignore[arg-type]
    assert not proxy.requests


@pytest.mark.parametrize(
    ("address", "kind", "variables"),
    [
        ("gs://bucket/x", "GCSStore", {"GOOGLE_SKIP_SIGNATURE": "true"}),
        (
            "az://container/x",
            "AzureStore",
            {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg=="},
        ),
    ],
)
def test_stores_of_google_and_azure_are_opened_with_the_variables_of_their_tools(
    address: str, kind: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store = open_objects(address, HASTY)
    assert repr(store) == f"ObjectStore({address!r})"
    assert type(store.open()).__name__ == kind


@pytest.mark.parametrize(
    ("fixture", "variable"),
    [
        pytest.param("google_store", "GOOGLE_BASE_URL", id="gs"),
        pytest.param("azure_store", "AZURE_STORAGE_ENDPOINT", id="az", marks=pytest.mark.nightly),
    ],
)
def test_tokens_and_faults_are_understood_with_other_providers(
    fixture: str, variable: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = request.getfixturevalue(fixture)
    server = urlsplit(os.environ[variable])
    with s3_proxy(f"{server.scheme}://{server.netloc}") as proxy:
        monkeypatch.setenv(variable, f"{proxy.endpoint}{server.path}")
        store = open_objects(address, HASTY)
        proxy.faults += [*LOST, *LOST]
        assert store.put_if_absent("a", b"same")
        assert not open_objects(address, HASTY).put_if_absent("a", b"same")
        proxy.faults += [("PUT", REPLY_LOST), ("PUT", DROPPED), ("PUT", DROPPED)]
        with pytest.raises(InDoubt):
            store.put_if_absent("b", b"1")
        assert store.put_if_absent("b", b"1")
        proxy.faults += [("PUT", SLOW_DOWN)] * 2
        store.put("a", b"2")
        proxy.faults += [("PUT", DENIED)] * 2
        with pytest.raises(InvalidPipeline, match="403 AccessDenied"):
            store.put("a", b"3")
        assert not proxy.faults
        store.delete_several(["a", "b", "never there"])
        assert store.keys("") == []


def test_azure_without_an_account_is_told_which_variable_is_missing() -> None:
    with pytest.raises(InvalidPipeline, match="cannot be opened") as caught:
        open_objects("az://container/x")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.do


@pytest.mark.parametrize(
    "address",
    [
        *("s3://key:hunter2@bucket/x", "s3:///x", "s3://bucket/x?y=hunter2", "hdfs://h/x", "s3://key%3Ahunter2%40b/x"),
        *("s3://b/my%20path", "s3://b/a%2Fb", "s3://b/a/../b", "s3://b/./a", "s3://b/..", "s3://b/a//b", "s3://b//a"),
        *("s3://b/a\\b", "s3://b/a\tb", "s3://b/a\x7f", "s3://b/a ", " s3://b/a", "s3://b/a?", "gs://b/a%20b"),
    ],
)
def test_an_address_that_is_not_understood_is_refused_without_its_text(address: str) -> None:
    for opening in (lambda: open_objects(address), MultipartUploads(address, HASTY).all):
        with pytest.raises(InvalidPipeline, match="not understood") as caught:
            opening()
        assert "hunter2" not in str(caught.value)


def test_a_store_goes_to_other_processes(store: ObjectStore) -> None:
    store.put("a", b"1")
    assert pickle.loads(pickle.dumps(store)).get("a") == b"1"


def test_the_library_is_imported_when_a_store_is_opened_and_its_absence_names_the_extra(
    s3_bucket: S3Bucket,
) -> None:
    code = (
        "import sys, holdfast.store.objects.store as objects\n"
        "assert 'obstore' not in sys.modules and 'botocore' not in sys.modules\n"
        "sys.modules['obstore'] = None\n"
        "objects.open_objects('s3://bucket/x')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "InvalidPipeline" in ran.stderr
    assert "holdfast[object-store]" in ran.stderr


def test_errors_are_ours(store: ObjectStore, proxy: S3Proxy) -> None:
    """Whatever the status: no error of the library reaches a caller."""
    for status in (301, 400, 401, 404, 405, 409, 411, 412, 416, 429, 500, 501, 502, 503, 504):
        proxy.faults[:] = [("GET", Fault(status, "Whatever"))] * 9
        with suppress(HoldfastError):
            assert store.get("a") is None
