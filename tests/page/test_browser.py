"""A person on call, in Chromium: from ``/`` in at most three clicks (issue 41, acceptance 1).

The screenshots of ``docs/page.md`` are made here where HOLDFAST_SCREENSHOTS is set: ``docs/images``.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn

from holdfast.page.guard import Guard
from holdfast.page.reading import CheckpointReader
from holdfast.page.server import Dashboard
from tests.page.given import (
    NOW_US,
    GivenReader,
    behind_a_sink,
    epoch_lines,
    graph,
    in_doubt,
    letter,
    story,
    waiting_key,
    words,
)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: apt-get install chromium"),
]

IMAGES = Path(__file__).parents[2] / "docs/images"
TOKEN = "correct horse battery"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ages be the same in every picture."""
    monkeypatch.setattr("holdfast.page.server.now_us", lambda: NOW_US)


@contextmanager
def served(reader: Any, token: str = "") -> Iterator[str]:
    """Give the address of a page."""
    app = Dashboard(Guard("127.0.0.1", token), cast("CheckpointReader", reader)).app()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def opened(browser: Any, base: str, **given: Any) -> Iterator[Any]:
    """Give a tab on the page; whatever the browser refuses or fails at is an error."""
    context = browser.new_context(viewport={"width": 1100, "height": 720}, **given)
    context.set_default_timeout(30_000)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(base)
    yield page
    context.close()
    assert said == []


def picture(page: Any, name: str) -> None:
    if os.environ.get("HOLDFAST_SCREENSHOTS"):
        IMAGES.mkdir(exist_ok=True)
        page.wait_for_selector('#live[data-state="on"]')
        page.screenshot(path=IMAGES / f"{name}.png")


def slow_sink(*, is_alive: bool = True, **given: Any) -> GivenReader:
    of: dict[str, Any] = {"said": in_doubt(), "lines": epoch_lines(400), "told": story(), "drawn": graph()}
    return GivenReader(behind_a_sink() if is_alive else None, **(of | given))


def test_a_slow_sink_is_found_in_one_click(browser: Any) -> None:
    with served(slow_sink()) as base, opened(browser, base) as page:
        assert "hourly_table, 81 % of the epoch" in page.inner_text("#part-condition")
        picture(page, "page-now")
        page.click("#part-condition a")
        page.wait_for_selector("#part-publish")
        assert "81 %" in page.inner_text("#part-publish")
        assert "41" in page.inner_text("#part-sink-hourly_table")


def test_a_key_that_waits_is_found_in_one_click(browser: Any) -> None:
    status = behind_a_sink()
    waits = replace(status.operators[0], waits=(waiting_key(status),))
    reader = slow_sink()
    reader.given = replace(status, operators=(waits,))
    with served(reader) as base, opened(browser, base) as page:
        page.click("text=origin=JFK waits on weather")
        page.wait_for_selector("#part-waits")
        assert "origin=JFK" in page.inner_text("#part-waits")


def test_a_paused_source_is_found_and_goes_on_with_three_clicks(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    status = behind_a_sink()
    reader = slow_sink()
    reader.given = replace(status, sources=(replace(status.sources[0], is_paused=True),))
    told: list[tuple[str, ...]] = []

    class Attached:
        def resume(self, *sources: str) -> dict[str, Any]:
            told.append(sources)
            return {"paused": [], "limits": {}, "ends": None}

    monkeypatch.setattr("holdfast.page.commands.attach", lambda checkpoint: Attached())
    with served(reader, TOKEN) as base, opened(browser, f"{base}/login") as page:
        page.fill("input[name=token]", TOKEN)
        page.click("text=Log in >> nth=-1")
        page.wait_for_selector("#part-condition")
        page.click("text=Source rides is paused")
        page.click("#part-sources button:has-text('Resume')")
        page.wait_for_selector("text=Paused: none.")
        assert told == [("rides",)]
        assert page.evaluate("document.cookie") == ""


def test_a_bad_file_is_found_in_one_click(browser: Any) -> None:
    status = behind_a_sink()
    why = {"rejects": {"/in/7.json, line 3: it is no JSON": 5}}
    reader = slow_sink()
    reader.given = replace(status, sources=(replace(status.sources[0], rejects=5, reasons=why, lag_s=0.0),))
    with served(reader) as base, opened(browser, base) as page:
        page.click("text=has rejected 5 rows")
        page.wait_for_selector("#part-rejects")
        assert "/in/7.json, line 3" in page.inner_text("#part-rejects")


def test_an_epoch_in_doubt_is_read_in_two_clicks(browser: Any) -> None:
    needs = ["! decided, and not known to be published everywhere: epoch 42.", "  Do: start the pipeline again."]
    with served(slow_sink(needs=needs, is_alive=False)) as base, opened(browser, base) as page:
        page.click("#part-condition a")
        page.click("text=epoch 42")
        page.wait_for_selector("#part-story")
        assert "the answer was lost: timeout" in page.inner_text("#part-story")
        assert "/data/in/2026-09-01.json" in page.inner_text("#part-read-rides")
        picture(page, "page-story")


def test_dead_letters_are_replayed_in_two_clicks(browser: Any) -> None:
    replayed: list[str] = []

    def replay(checkpoint: str, names: Any, shard: int | None) -> list[str]:
        replayed.extend(names or ["all"])
        return [*names]

    reader = slow_sink(dead=[letter(), letter("rides/log/902/0", id=8, km="y")])
    reader.words = words(replay=replay)  # type: ignore[attr-defined]
    with served(reader, TOKEN) as base, opened(browser, f"{base}/login") as page:
        page.fill("input[name=token]", TOKEN)
        page.click("text=Log in >> nth=-1")
        page.click("text=Dead letters")
        picture(page, "page-letters")
        page.click("tr:has-text('rides/log/902/0') button")
        page.wait_for_selector("text=1 dead letters are replayed by the next start.")
        assert replayed == ["rides/log/902/0"]


def test_what_a_rewind_costs_is_read_in_two_clicks(browser: Any) -> None:
    named = {"name": "monday", "epoch": 30, "at_us": 1, "rows": 5, "size_bytes": 900, "problem": ""}
    with served(slow_sink(names=[named])) as base, opened(browser, base) as page:
        page.click("text=Starts & snapshots")
        page.click("text=what a rewind to it would withdraw")
        page.wait_for_selector("text=would be withdrawn")
        page.goto(f"{base}/starts")
        page.fill("input[name=to]", "../41")
        page.click("button:has-text('Look')")
        page.wait_for_selector("text=after epoch ../41: would be withdrawn")


def test_the_page_keeps_itself_up_to_date_and_is_steered_by_keys(browser: Any) -> None:
    reader = slow_sink()
    with served(reader) as base, opened(browser, base, color_scheme="dark") as page:
        page.wait_for_selector('#live[data-state="on"]')
        reader.given = replace(behind_a_sink(), epoch=77)
        page.wait_for_selector("#part-numbers dd:has-text('77')")
        page.keyboard.press("p")
        page.wait_for_selector('#live[data-state="held"]')
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
        page.keyboard.press("4")
        page.wait_for_selector(".plot .uplot canvas")
        picture(page, "page-epochs")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector("#part-story")


def test_all_texts_are_there_without_scripts(browser: Any) -> None:
    with served(slow_sink()) as base, opened(browser, base, java_script_enabled=False) as page:
        assert "Source rides is behind" in page.inner_text("#part-condition")
        page.click("text=Epochs")
        page.click("svg.chart a >> nth=-1")
        page.wait_for_selector("#part-story")


def test_a_hostile_text_stays_a_text(browser: Any) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    reader = slow_sink()
    reader.given = replace(behind_a_sink(hostile, hostile, hostile), doing=hostile, waits_for=hostile)
    with served(reader) as base, opened(browser, base) as page:
        page.wait_for_selector('#live[data-state="on"]')
        reader.given = replace(reader.given, epoch=78)
        page.wait_for_selector("#part-numbers dd:has-text('78')")
        assert page.title() != "owned"
        assert page.query_selector("main img, main script") is None
