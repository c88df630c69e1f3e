"""How object stores are reached: one place for both libraries, endpoints of the files in ~/.aws, and time enough."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.errors import InDoubt, InvalidPipeline, Unavailable
from holdfast.retry import RetryPolicy
from holdfast.store.objects.client import arrow_file_system, check_address
from holdfast.store.objects.errors import SLOW_BYTES_S, RequestLimits
from holdfast.store.objects.multipart import MultipartUploads
from holdfast.store.objects.store import open_objects
from tests.http_servers import Quiet, serving_with
from tests.s3_proxy import Fault, S3Proxy
from tests.s3_server import S3Bucket

pytestmark = pytest.mark.slow

HASTY = RequestLimits(RetryPolicy(1), RetryPolicy(1), timeout_s=1)
LARGE = b"x" * (2 * SLOW_BYTES_S)
"""Of an object that a slow line sends in two seconds."""


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("s3://bucket/hunter2%20path", "percent sign"),
        ("s3://bucket/hunter2%2Fb", "percent sign"),
        ("s3://key%3Ahunter2%40bucket/x", "percent sign"),
        ("gs://bucket/hunter2\\b", "backslash"),
        ("s3://bucket/hunter2\nb", "control character"),
        ("s3://bucket/hunter2\x7f/b", "control character"),
        ("s3://bucket/hunter2 ", "space before or behind"),
        ("s3://bucket/hunter2 /", "space before or behind"),
        (" s3://bucket/hunter2", "space before or behind"),
        ("s3://bucket/hunter2//b", "is empty"),
        ("s3://bucket//hunter2", "is empty"),
        ("s3://bucket/hunter2//", "is empty"),
        ("s3://bucket//", "is empty"),
        ("az://container/hunter2/./b", "is empty"),
        ("s3://bucket/hunter2/../b", "is empty"),
        ("s3://bucket/hunter2/..", "is empty"),
        ("s3://bucket/hunter2?", "credentials are never part of it"),
        ("s3://bucket/hunter2#", "credentials are never part of it"),
        ("hunter2", "credentials are never part of it"),
    ],
)
def test_an_address_that_is_not_the_same_place_to_every_library_is_refused(address: str, why: str) -> None:
    """What one library writes another would not find, nor remove before its rows are written again."""
    with pytest.raises(InvalidPipeline, match="not understood") as caught:
        check_address(address)
    assert why in caught.value.why
    assert "plain names between its slashes" in caught.value.do
    assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "/a/",
        "/a/b",
        "/my path/b",
        "/.../..a/b.",
        "/day=1/a+b&c;d,e:f@g!$'()*~",
        "/tüür/漢",
        '/"<{`^|}>"',
    ],
)
def test_what_is_accepted_is_one_place(s3_bucket: S3Bucket, path: str) -> None:
    address = f"s3://{s3_bucket.name}{path}"
    place, uploads = open_objects(address), MultipartUploads(address, HASTY)
    place.put("key", b"1")
    upload_id = uploads.create("key")
    assert uploads.all() == [("key", upload_id)]
    assert MultipartUploads(f"s3://{s3_bucket.name}", HASTY).all() == [
        (f"{path.strip('/')}/key".lstrip("/"), upload_id)
    ]
    assert open_objects(f"s3://{s3_bucket.name}").keys("") == [f"{path.strip('/')}/key".lstrip("/")]


PROFILE = "[default]\nregion = eu-north-1\n"
FILES = {
    "profile": PROFILE + "endpoint_url = {endpoint}\n",
    "services": PROFILE + "endpoint_url = http://127.0.0.1:1\nservices = here\n"
    "[services here]\ns3 =\n  endpoint_url = {endpoint}\n",
}


@pytest.fixture
def config(proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of ~/.aws; nothing about an endpoint is in the variables."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path / "config"


@pytest.mark.parametrize("has_keys", [True, False])
@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_an_endpoint_in_the_files_is_that_of_both_libraries(
    text: str, has_keys: bool, config: Path, proxy: S3Proxy, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile may be all that there is, or the keys may be in the variables."""
    config.write_text(text.format(endpoint=proxy.endpoint))
    if not has_keys:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        (config.parent / "credentials").write_text("[default]\naws_access_key_id = k\naws_secret_access_key = x\n")
    open_objects(s3_bucket.address, HASTY).put("a", b"1")
    MultipartUploads(s3_bucket.address, HASTY).create("b")
    files, path = arrow_file_system(s3_bucket.address)
    assert files.open_input_stream(f"{path}/a").read() == b"1"
    assert proxy.methods[:2] == ["PUT", "POST"]
    assert len(proxy.methods) > 2
    assert all(request.path.startswith(f"/{s3_bucket.name}/") for request in proxy.requests)


def test_an_endpoint_in_the_variables_goes_before_that_in_the_files(
    config: Path, proxy: S3Proxy, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(FILES["profile"].format(endpoint="http://127.0.0.1:1"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    open_objects(s3_bucket.address, HASTY).put("a", b"1")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    with pytest.raises(Unavailable, match="nothing answers there"):
        open_objects(s3_bucket.address, HASTY).put("a", b"1")
    assert proxy.methods == ["PUT"]


def test_files_that_are_told_to_be_ignored_are(
    config: Path, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(FILES["profile"].format(endpoint="http://hunter2.invalid"))
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert "endpoint" not in open_objects(s3_bucket.address).open().config
    monkeypatch.delenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    assert open_objects(s3_bucket.address).open().config["endpoint"] == "http://hunter2.invalid"


@pytest.mark.parametrize("text", ["[default]\nservices = elsewhere\n", "[default\nhunter2"])
def test_files_that_cannot_be_read_are_told(config: Path, s3_bucket: S3Bucket, text: str) -> None:
    """Without a word the rows would go somewhere else than the profile says."""
    config.write_text(text)
    with pytest.raises(InvalidPipeline, match="the endpoint of the profile cannot be read") as caught:
        open_objects(s3_bucket.address)
    assert "endpoint_url and services of the profile" in caught.value.do
    assert "hunter2" not in str(caught.value)


def test_a_large_object_is_given_the_time_of_a_slow_line() -> None:
    given = RequestLimits().body_timeout_s
    assert [given(size * 2**20) for size in (0, 7, 8, 100, 1000)] == [30, 30, 60, 480, 7680]


def test_a_large_object_is_written_over_a_slow_line_and_a_small_one_is_not_waited_for(
    proxy: S3Proxy, s3_bucket: S3Bucket
) -> None:
    """While a body is sent, nothing is read: the time for an answer counts from its first byte."""
    store = open_objects(s3_bucket.address, HASTY)
    slow = ("PUT", Fault(200, is_done=True, delay_s=1.3))
    proxy.faults += [slow] * 3
    store.put("a", LARGE)
    assert store.put_if_absent("b", LARGE)
    with pytest.raises(InDoubt, match="no answer came in time"):
        store.put("c", b"1")
    assert store.get("a") == store.get("b") == LARGE


def test_credentials_are_renewed_for_objects_of_every_size(
    proxy: S3Proxy, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_objects(s3_bucket.address, HASTY)
    store.put("a", b"1")
    store.put("b", LARGE)
    proxy.accepts = lambda key: key == "renewed"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    proxy.requests.clear()
    store.put("b", LARGE)
    store.put("a", b"1")
    assert proxy.methods == ["PUT"] * 3, "one was refused"


def test_a_reply_may_take_long_and_may_not_stand_still(s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("Content-Length", "4")
            self.end_headers()
            for number in range(4):
                self.wfile.write(str(number).encode())
                time.sleep(3 if "stuck" in self.path else 0.4)

    with serving_with(Slow) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        store = open_objects(s3_bucket.address, HASTY)
        assert store.get("large") == b"0123"
        with pytest.raises(Unavailable, match="no answer came in time"):
            store.get("stuck")
