"""The page as others reach it: hosts, tokens, forms, hostile texts, secrets, changes (design/0049, section 6)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from holdfast.checkpoint.start_history import StartLine
from holdfast.display.drawing import Box
from holdfast.errors import Unavailable
from holdfast.observe.shards import ShardReport
from holdfast.page import layout
from holdfast.page.fleet import FleetLine, key_of
from holdfast.page.guard import ATTEMPTS, Guard
from holdfast.page.reading import CheckpointReader
from holdfast.page.server import BODY_MAX, Dashboard
from holdfast.status import ShardStatus, SourceStatus, Wait
from tests.page.given import NOW_US, GivenReader, behind_a_sink, epoch_lines, graph, in_doubt, letter, story

TOKEN = "correct horse battery"
HOSTILE = "<img src=x onerror=alert(1)>\"'&</script>"
SECRET = "hunter2-in-a-text"


def client(
    reader: Any = None, *, token: str = "", host: str = "127.0.0.1", base: str = "http://127.0.0.1:8080"
) -> TestClient:
    one = cast("CheckpointReader", reader or GivenReader(behind_a_sink(), drawn=graph()))
    return TestClient(Dashboard(Guard(host, token), one).app(), base_url=base, follow_redirects=False)


def logged_in(reader: Any = None, **given: Any) -> tuple[TestClient, str]:
    of = client(reader, token=TOKEN, **given)
    assert of.post("/login", data={"token": TOKEN}).status_code == 303
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', of.get("/").text)
    assert found is not None
    return of, found[1]


@pytest.mark.parametrize(
    "view", ["", *[each for each in layout.VIEWS if each != "now"], "epochs/41", "sources/rides", "starts/40"]
)
def test_every_view_is_answered_with_what_it_allows(view: str) -> None:
    answer = client().get(f"/{view}")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"
    assert " style=" not in answer.text
    assert " onclick" not in answer.text


# --- who may --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:9000", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.7:8080", 421),
        ("", 421),
    ],
)
def test_another_name_for_this_machine_is_refused(host: str, status: int) -> None:
    assert client().get("/", headers={"host": host}).status_code == status


def test_a_page_for_others_is_read_by_who_knows_the_token() -> None:
    of = client(token=TOKEN, host="10.0.0.7", base="http://10.0.0.7:8080")
    for view in ("/", "/sinks", "/epochs.json", "/events?view=now", "/told/1"):
        answer = of.get(view)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert of.get("/assets/page.css").status_code == 200
    assert of.post("/login", data={"token": "wrong"}).status_code == 403
    assert of.post("/login", data={"token": TOKEN}).status_code == 303
    assert of.get("/").status_code == 200
    assert of.get("/", headers={"host": "evil.example"}).status_code == 421


def test_the_cookie_cannot_be_read_by_scripts_nor_sent_by_other_sites() -> None:
    cookie = client(token=TOKEN).post("/login", data={"token": TOKEN}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie


def test_a_page_without_token_has_no_forms_and_carries_nothing_out() -> None:
    of = client()
    assert "<form" not in of.get("/").text
    assert of.post("/commands/pause", data={"source": "rides", "form_token": ""}).status_code == 403
    assert of.post("/login", data={"token": ""}).status_code == 403


@pytest.mark.parametrize("forged", ["", "0" * 64, "ü"])
def test_a_command_needs_the_cookie_and_the_token_of_a_form(forged: str) -> None:
    of, form_token = logged_in()
    assert of.post("/commands/pause", data={"form_token": forged}).status_code == 403
    stranger = client(token=TOKEN)
    assert stranger.post("/commands/pause", data={"form_token": form_token}).status_code == 403
    stranger.cookies.set("holdfast", "made.up")
    assert stranger.post("/commands/pause", data={"form_token": form_token}).status_code == 403
    assert stranger.get("/told/1").status_code == 404
    other, _ = logged_in()
    assert other.post("/commands/pause", data={"form_token": form_token}).status_code == 403  # of another page


def test_a_token_is_not_guessed_by_trying() -> None:
    of = client(token=TOKEN)
    for _ in range(ATTEMPTS):
        assert of.post("/login", data={"token": "guess"}).status_code == 403
    assert of.post("/login", data={"token": TOKEN}).status_code == 403


def test_what_is_no_request_of_the_page_is_refused() -> None:
    of, form_token = logged_in()
    assert of.request("DELETE", "/").status_code == 405
    assert of.get("/commands/pause").status_code == 405
    assert of.post("/login", content=b"x" * (BODY_MAX + 1)).status_code == 413
    assert of.post("/login", content=b"token=\xff\xfe").status_code in (400, 403)
    assert of.get("/epochs/none").status_code == 404
    assert of.get("/epochs?page=-1&shard=x").status_code == 200
    assert of.get("/events?view=../../etc").status_code == 404
    answer = of.post("/commands/explode", data={"form_token": form_token})
    assert answer.status_code == 503
    assert "the page has no command" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../server.py",
        "/assets/%2e%2e/server.py",
        "/assets/..%2fserver.py",
        "/assets//etc/passwd",
        "/../../etc/passwd",
        "/sources/..%2f..%2fetc%2fpasswd",
    ],
)
def test_no_path_leads_out_of_the_page(path: str) -> None:
    answer = client().get(path)
    assert "root:" not in answer.text
    assert "import " not in answer.text
    assert answer.status_code in (200, 404)
    if answer.status_code == 200:
        assert "Source ../../etc/passwd" in answer.text


def test_a_command_leads_back_to_the_page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = GivenReader(behind_a_sink())
    of, form_token = logged_in(reader)
    for back in ("https://evil.example/", "//evil.example/", "javascript:alert(1)"):
        told = of.post("/commands/pause", data={"form_token": form_token, "back": back})
        assert re.fullmatch(r"/told/\d+", told.headers["location"])
        assert "evil" not in of.get(told.headers["location"]).text
        assert "javascript:" not in of.get(told.headers["location"]).text


# --- hostile texts and secrets --------------------------------------------------------------------------------------


def hostile(text: str) -> GivenReader:
    """Return a pipeline that has a text wherever one can be."""
    status = behind_a_sink(text, text, text)
    wait = Wait({text: text}, text, NOW_US - 10**9, None, 3)
    source = SourceStatus(text, {text: text}, {text: 7}, None, 5, 3, {"rejects": {text: 3}}, lag_s=500.0)
    operator = replace(
        status.operators[0], name=text, kind=text, waits=(wait,), counts={text: 1}, reasons={text: {text: 1}}
    )
    assert status.time is not None
    of = replace(
        status,
        sources=(source,),
        operators=(operator,),
        sinks=(replace(status.sinks[0], kind=text, guarantee=text, pace=text),),
        error=text,
        waits_for=text,
        doing=text,
        time=replace(status.time, limited_by=text),
        checkpoints=None if status.checkpoints is None else replace(status.checkpoints, last_error=text),
    )
    said = in_doubt(text)
    report = replace(said.sinks[0], name=text, staging=text, orphans=(text,))
    said = replace(said, pipeline=text, sinks=(report, replace(report, problem=text)))
    start = StartLine(3, NOW_US, text, text, text, text, text, text)
    named = {"name": text, "epoch": 30, "at_us": NOW_US, "rows": 5, "size_bytes": 900, "problem": ""}
    dead = {**letter(text, **{text: text}), "error": {"kind": text, "what": text, "why": text}, "standing": "left out"}
    told = story(text)
    told = replace(told, story=(replace(told.story[0], participant=text, detail=text, event=text, after=text),))
    told = replace(told, spans=(replace(told.spans[0], source=text, end={text: text}, places=(text,)),))
    return GivenReader(
        of, said, epoch_lines(3, text), told, [start], [named, {**named, "problem": text}], [dead], [f"! {text}"],
        [Box(text, text, "source"), Box(f"{text}2", text, "sink", (0,))], [text], text,
    )  # fmt: skip


ALLOWED = {
    *("a", "b", "body", "button", "dd", "div", "dl", "dt", "footer", "form", "g", "h1", "h2", "head", "header", "html"),
    *("input", "label", "li", "link", "main", "meta", "nav", "p", "path", "pre", "rect", "script", "section", "span"),
    *("option", "select", "strong", "svg", "table", "tbody", "td", "text", "th", "thead", "time", "title", "tr", "ul"),
}


class Markup(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str, str]] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(tag, name, value or "") for name, value in attrs}


VIEWS = [
    "",
    "sources",
    f"sources/{'%3Cimg'}",
    "sinks",
    "epochs",
    "epochs/42",
    "state",
    "starts",
    "starts/%3Cb%3E",
    "letters",
    "settings",
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_alive", [True, False])
def test_no_text_becomes_html(view: str, is_alive: bool) -> None:
    reader = hostile(HOSTILE)
    of, _ = logged_in(reader)
    reader.given = reader.given if is_alive else None
    answer = of.get(f"/{view}")
    assert answer.status_code == 200
    check_markup(answer.text)
    assert "&lt;img" in answer.text or view == "settings"


def check_markup(shown: str) -> None:
    """Assert that a page has no element, attribute or address that the views do not make."""
    of_page = Markup()
    of_page.feed(shown)
    assert of_page.tags <= ALLOWED
    assert {name for _, name, _ in of_page.attributes if name.startswith("on") or name == "style"} == set()
    leading = {
        (tag, value) for tag, name, value in of_page.attributes if name in ("href", "src", "action", "data-events")
    }
    assert {each for each in leading if not each[1].startswith("/")} == set()


def in_shards(text: str, *, is_alive: bool) -> GivenReader:
    """Return a pipeline in shards that has a text wherever one can be."""
    reader = hostile(text)
    assert reader.given is not None
    live = (ShardStatus(0, doing=text), ShardStatus(1, "failed", error=text))
    noted = tuple(ShardReport(shard, 3, generation=2, state=text, error=text, at_us=NOW_US) for shard in range(2))
    reader.said = replace(reader.said, shards=noted)
    reader.given = replace(reader.given, shards=live) if is_alive else None
    reader.dead = [{**each, "shard": 1} for each in reader.dead]
    return reader


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "settings"])
@pytest.mark.parametrize("is_alive", [True, False])
def test_no_text_of_a_shard_becomes_html_and_no_secret_of_it_is_shown(view: str, is_alive: bool) -> None:
    shown = client(in_shards(HOSTILE, is_alive=is_alive), token=TOKEN).get(f"/{view}").text
    check_markup(shown)
    assert "&lt;img" in shown
    secret = in_shards(f"postgresql://app:{SECRET}@db/trips password={SECRET}", is_alive=is_alive)
    assert SECRET not in client(secret).get(f"/{view}").text


def test_no_text_of_a_fleet_becomes_html_and_no_key_of_it_leads_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = f"s3://app:{SECRET}@bucket/trips password={SECRET}"
    lines = [
        FleetLine(key_of(text), text, text, "bad", text, 7, 3, text[:8], NOW_US) for text in (HOSTILE, secret, "../..")
    ]
    monkeypatch.setattr("holdfast.page.server.fleet_lines", lambda locations: lines)
    monkeypatch.setattr("holdfast.page.server.find_checkpoints", lambda roots: [line.location for line in lines])
    fleet = Dashboard(Guard("127.0.0.1"), None, ["root"], lambda at: cast("CheckpointReader", GivenReader(None)))
    of = TestClient(fleet.app(), base_url="http://localhost", follow_redirects=False)
    shown = of.get("/").text
    check_markup(shown)
    assert "&lt;img" in shown
    assert SECRET not in shown
    for key in ("root", "..%2f..%2fetc%2fpasswd", key_of("elsewhere")):
        assert of.get(f"/at/{key}/").status_code == 404, key
    assert of.get(f"/at/{key_of('../..')}/").status_code == 200


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_alive", [True, False])
def test_no_secret_is_shown(view: str, is_alive: bool) -> None:
    reader = hostile(f"postgresql://app:{SECRET}@db/trips password={SECRET}")
    of, _ = logged_in(reader)
    reader.given = reader.given if is_alive else None
    assert SECRET not in of.get(f"/{view}").text


# --- changes --------------------------------------------------------------------------------------------------------


def parts_sent(reader: GivenReader, view: str, change: Callable[[], None]) -> list[dict[str, Any]]:
    """Return what two looks at a view send; something changes in between."""
    import asyncio

    class Request:
        def __init__(self) -> None:
            self.query_params = {"view": view}
            self.path_params = self.cookies = dict[str, str]()

        async def is_disconnected(self) -> bool:
            return False

    async def sent() -> list[dict[str, Any]]:
        dashboard = Dashboard(Guard("127.0.0.1"), cast("CheckpointReader", reader))
        made = lambda: layout.fragments(dashboard._moment(cast("Any", Request()), view, ""))  # noqa: E731
        changes = dashboard._changes(cast("Any", Request()), made)
        first = await anext(changes)
        change()
        second = await anext(changes)
        await cast("Any", changes).aclose()
        assert dashboard._listeners == 0
        return [json.loads(each.removeprefix("data: ")) for each in (first, second)]

    return asyncio.run(sent())


def test_who_listens_is_sent_the_parts_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.page.server.EVENT_S", 0.0)
    monkeypatch.setattr("holdfast.page.server.now_us", lambda: NOW_US)
    reader = GivenReader(behind_a_sink(), drawn=graph())

    def change() -> None:
        assert reader.given is not None
        reader.given = replace(reader.given, epoch=42, time=None)

    first, second = parts_sent(reader, "now", change)
    assert first["order"][:3] == ["head", "part-condition", "part-numbers"]
    assert "part-numbers" in second["parts"]
    assert "head" not in second["parts"]
    assert second["gone"] == ["part-time"]


def test_a_checkpoint_that_cannot_be_read_is_said_with_its_cure() -> None:
    class Broken(GivenReader):
        def inspection(self, shard: int | None) -> Any:
            raise Unavailable("the checkpoint is away.", why="no network.", do="wait.")

    answer = client(Broken(None)).get("/")
    assert answer.status_code == 503
    assert "the checkpoint is away." in answer.text
    assert "wait." in answer.text


def test_epochs_are_given_to_the_browser_by_columns() -> None:
    found = client(GivenReader(behind_a_sink(), lines=epoch_lines(3))).get("/epochs.json").json()
    assert found["epoch"] == [1, 2, 3]
    assert set(found) == {"epoch", "ended_s", "took_s", "rows"}
