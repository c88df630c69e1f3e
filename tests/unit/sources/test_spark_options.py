"""What of the options of Spark's readers is shown: those on a list; of all others only that they are given."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

import holdfast as hf
from holdfast.checkpoint.graph_record import GraphRecord, Role, described, note_description
from holdfast.connectors.spark_options import KEY_VARIABLE
from holdfast.errors import InvalidPipeline
from holdfast.graph.naming import canonical_json
from holdfast.starts.graph_diff import NodeVerdict, compare
from holdfast.testing.store import SimulatedStore

KEY = "5f" * 32
OTHER_KEY = "a7" * 32
SECRET = "hunter2"

SECRETS = [
    ("eventhubs.connectionString", f"Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey={SECRET}"),
    ("auth", SECRET),
    ("authorization", f"Bearer {SECRET}"),
    ("headers", json.dumps({"X-Api": SECRET})),
    ("pwd", SECRET),
    ("whatever", SECRET),
    ("kafka.sasl.jaas.config", f"user {SECRET}"),
    # Options that are shown, with values that are not.
    ("path", f"https://account.blob.core.windows.net/c?sv=1&sig={SECRET}"),
    ("path", f"ftp://ann:{SECRET}@host/data"),
    ("path", f"https://{SECRET}@host/data"),
    ("kafka.bootstrap.servers", f"SASL://ann:{SECRET}@broker:9092"),
    ("subscribe", f"a;SharedAccessKey={SECRET}"),
]


@pytest.fixture(autouse=True)
def without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def pipeline(**options: str) -> hf.Pipeline:
    return hf.Pipeline("clicks", hf.read.spark("kafka", options, name="clicks") | hf.write.console(name="shown"))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", KEY])
@pytest.mark.parametrize(("option", "value"), SECRETS)
def test_a_secret_in_an_option_stands_in_no_spec_explanation_or_record(
    option: str, value: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    built = pipeline(**{option: value})
    record = described(built, {}).to_json().decode()
    shown = " ".join([json.dumps(built.spec()), built.explain(), built.diagram(), repr(built.nodes), record])
    assert SECRET not in shown
    assert not key or key not in shown


def test_options_that_say_what_is_read_are_shown() -> None:
    options = {"kafka.bootstrap.servers": "a:9092,b:9092", "subscribe": "clicks", "startingOffsets": "earliest"}
    assert pipeline(**options).nodes[0].arguments()["options"] == options
    assert "earliest" in pipeline(**options).explain()


def test_a_changed_secret_changes_the_fingerprint_where_there_is_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert pipeline(auth="a").fingerprint() != pipeline(auth="b").fingerprint()
    assert compare(described(pipeline(auth="a"), {}), described(pipeline(auth="b"), {})).nodes[0].verdict is (
        NodeVerdict.CHANGED
    )


def test_without_a_key_nothing_shown_depends_on_the_secret() -> None:
    """A hash that anybody can compute would be a place to try out short passwords."""
    assert pipeline(auth="a").spec() == pipeline(auth="b").spec()
    assert pipeline(auth="a").fingerprint() != pipeline(headers="a").fingerprint()


@pytest.mark.slow
def test_the_fingerprint_is_equal_in_another_process_that_has_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    code = (
        "import holdfast as hf; print(hf.Pipeline('clicks', hf.read.spark('kafka', {'auth': 'a'}, name='clicks')"
        " | hf.write.console(name='shown')).fingerprint())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == pipeline(auth="a").fingerprint()


def test_a_copy_of_a_checkpoint_is_no_place_to_try_out_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    record = described(pipeline(auth="1234"), {}).to_json().decode()
    guesses = {hashlib.sha256(text.encode()).hexdigest()[:12] for text in ("1234", "auth1234", "auth\x001234")}
    assert not any(guess in record for guess in guesses)
    assert KEY[:12] not in record


def test_a_key_that_could_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(InvalidPipeline, match=KEY_VARIABLE) as refused:
        pipeline(auth="a").fingerprint()
    assert "short'" not in str(refused.value)


def recorded(built: hf.Pipeline, options: dict[str, str]) -> GraphRecord:
    """Return the record of the version before: options in clear, or covered by what looked like a secret."""
    node = built.nodes[0]
    arguments = canonical_json({**node.arguments(), "options": options})
    graph = described(built, {})
    old = type(graph.nodes["clicks"])(Role.SOURCE, "spark", arguments, ())
    return GraphRecord.from_json(GraphRecord("0" * 16, {**graph.nodes, "clicks": old}, {}).to_json(), "graph.json")


@pytest.mark.parametrize("key", ["", KEY])
def test_a_record_of_an_older_version_is_the_same_graph(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    built = pipeline(subscribe="clicks", auth="a", password="b", path="ftp://ann:c@host/data")
    old = recorded(built, {"subscribe": "clicks", "auth": "a", "password": "***", "path": "ftp://***@host/data"})
    assert compare(old, described(built, {})).is_empty
    assert '"auth":"a"' not in old.nodes["clicks"].arguments
    # What can be told is told.
    changed = pipeline(subscribe="other", auth="a", password="b", path="ftp://ann:c@host/data")
    assert compare(old, described(changed, {})).nodes[0].details == ('options.subscribe: "clicks" -> "other"',)


def test_another_key_says_nothing_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    built = pipeline(auth="a")
    graphs = []
    for key in ("", KEY, OTHER_KEY):
        monkeypatch.setenv(KEY_VARIABLE, key)
        graphs.append(described(built, {}))
    for before in graphs:
        for after in graphs:
            assert compare(before, after).is_empty


def test_the_next_start_covers_what_an_older_version_noted_in_clear() -> None:
    store = SimulatedStore()
    built = pipeline(subscribe="clicks", auth=SECRET)
    spec = built.spec()
    spec["nodes"][0]["arguments"]["options"] = {"subscribe": "clicks", "auth": SECRET}
    store.put("graph/0.json", json.dumps(spec).encode())
    store.put("graph/1.json", b"damaged")
    note_description(store, built)
    texts = {key: store.get(key) for key in store.keys("graph/")}
    assert len(texts) == 3
    assert texts["graph/1.json"] == b"damaged"
    assert not any(SECRET.encode() in text for text in texts.values())
