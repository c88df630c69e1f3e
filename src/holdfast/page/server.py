"""The page as a program of Starlette: views, their changes as server-sent events, commands.

A view is made in a thread of a few.  Whoever listens to its changes is sent the parts that differ from those before,
about each second; a browser without scripts has the page as it was, and reloads it.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast.errors import HoldfastError
from holdfast.page import layout
from holdfast.page.commands import Errand, errand
from holdfast.page.fleet import FleetLine, find_checkpoints, fleet_lines, fleet_table, key_of
from holdfast.page.guard import COOKIE, HEADERS, Guard
from holdfast.page.html import el
from holdfast.page.model import Asked, Moment
from holdfast.page.reading import CheckpointReader, Remembered
from holdfast.page.starts import failure

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("holdfast.page")

ASSETS = Path(__file__).parent / "assets"

EVENT_S = 1.0
"""How often it is looked whether a view has changed."""

BODY_MAX = 1 << 16
"""Bytes of a form."""

ERRANDS_KEPT = 100
LISTENERS_MAX = 64
"""Views that are kept up to date at once."""


def now_us() -> int:
    """Return microseconds of Unix time."""
    return time.time_ns() // 1000


@dataclass
class Dashboard:
    """What the page shows: one pipeline, or a fleet.

    Parameters
    ----------
    guard : Guard
        Who may.
    one : CheckpointReader, optional
        The pipeline; None where a fleet is shown.
    roots : sequence of str
        Directories and buckets of a fleet.
    open_reader : callable, optional
        Returns what reads a checkpoint of the fleet.
    """

    guard: Guard
    one: CheckpointReader | None = None
    roots: Sequence[str] = ()
    open_reader: Callable[[str], CheckpointReader] | None = None
    _readers: dict[str, CheckpointReader] = field(default_factory=dict)
    _errands: OrderedDict[int, Errand] = field(default_factory=OrderedDict)
    _told: int = 0
    _answers: Remembered = field(default_factory=Remembered)
    _listeners: int = 0

    def app(self) -> ASGIApp:
        """Return the program."""
        routes: list[BaseRoute] = [Mount("/assets", StaticFiles(directory=ASSETS)), *self._entrance()]
        if self.one is not None:
            routes += self._views("")
        else:
            routes += [Route("/", self._fleet), *self._views("/at/{key}")]
        handlers = {HTTPException: _refusal, HoldfastError: _failure, Exception: _failure}
        return Guarded(Starlette(routes=routes, exception_handlers=handlers), self.guard)  # type: ignore[arg-type]

    def _views(self, base: str) -> list[BaseRoute]:
        named = [Route(f"{base}/{view}", self._view(view)) for view in layout.VIEWS if view != "now"]
        return [
            Route(f"{base}/", self._view("now")),
            *named,
            Route(f"{base}/sources/{{item:path}}", self._view("sources")),
            Route(f"{base}/epochs/{{item:int}}", self._view("epochs")),
            Route(f"{base}/starts/{{item:path}}", self._view("starts")),
            Route(f"{base}/rewind", self._rewind),
            Route(f"{base}/epochs.json", self._series),
            Route(f"{base}/events", self._events),
            Route(f"{base}/commands/{{command}}", self._command, methods=["POST"]),
            Route(f"{base}/told/{{number:int}}", self._errand),
        ]

    def _entrance(self) -> list[BaseRoute]:
        return [
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout),
        ]

    # --- views ------------------------------------------------------------------------------------------------------

    def _view(self, view: str) -> Callable[[Request], object]:
        async def show(request: Request) -> Response:
            moment = await anyio.to_thread.run_sync(self._moment, request, view)
            return HTMLResponse(await anyio.to_thread.run_sync(layout.page, moment))

        return show

    def _moment(self, request: Request, view: str, item: str | None = None) -> Moment:
        key = str(request.path_params.get("key", ""))
        asked = Asked(
            view,
            f"/at/{key}" if key else "",
            _number(request.query_params.get("shard")),
            _number(request.query_params.get("page")) or 1,
            item if item is not None else str(request.path_params.get("item", "")),
            self.guard.form_token(request.cookies.get(COOKIE, "")),
        )
        return Moment(self._reader(key), asked, now_us())

    def _reader(self, key: str) -> CheckpointReader:
        if self.one is not None:
            return self.one
        found = self._readers.get(key)
        if found is None:
            location = next((each for each in self._locations() if key_of(each) == key), None)
            if location is None or self.open_reader is None:
                raise HTTPException(404)
            found = self._readers[key] = self.open_reader(location)
        return found

    def _locations(self) -> list[str]:
        return self._answers.get("locations", 30.0, lambda: find_checkpoints(self.roots))

    async def _fleet(self, request: Request) -> Response:
        asked = Asked(page=_number(request.query_params.get("page")) or 1)

        def make() -> str:
            lines: list[FleetLine] = self._answers.get("lines", 5.0, lambda: fleet_lines(self._locations()))
            main = el("main", fleet_table(lines, asked, now_us()), id="main")
            return layout.document(
                "All pipelines", asked, [el("header", el("strong", "All pipelines"), id="head"), main]
            )

        return HTMLResponse(await anyio.to_thread.run_sync(make))

    async def _rewind(self, request: Request) -> Response:
        moment = await anyio.to_thread.run_sync(self._moment, request, "starts")
        to = request.query_params.get("to", "").strip()
        return RedirectResponse(moment.asked.to("starts", to) if to else moment.asked.to("starts"), 303)

    async def _series(self, request: Request) -> Response:
        """Answer with all epochs that are listed, by columns."""

        def make() -> dict[str, list[float]]:
            lines = self._moment(request, "epochs").epochs
            return {
                "epoch": [line.epoch for line in lines],
                "ended_s": [line.ended_us / 1e6 for line in lines],
                "took_s": [line.took_s for line in lines],
                "rows": [line.rows for line in lines],
            }

        return JSONResponse(await anyio.to_thread.run_sync(make))

    async def _events(self, request: Request) -> Response:
        view = request.query_params.get("view", "now")
        item = request.query_params.get("item", "")
        if view not in layout.VIEWS or (view == "epochs" and item and not item.isdigit()):
            raise HTTPException(404)
        if self._listeners >= LISTENERS_MAX:
            raise HTTPException(503)

        def make() -> dict[str, str]:
            return {**layout.fragments(self._moment(request, view, item))}

        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._changes(request, make), media_type="text/event-stream", headers=headers)

    async def _changes(self, request: Request, make: Callable[[], Mapping[str, str]]) -> AsyncIterator[str]:
        """Yield the parts of a view that have changed, until nobody listens."""
        before: Mapping[str, str] | None = None
        self._listeners += 1
        try:
            while not await request.is_disconnected():
                try:
                    after = await anyio.to_thread.run_sync(make)
                except HoldfastError as error:
                    log.warning("a view cannot be made: %s", error)
                    after = before or {}
                changed = {key: after[key] for key in after if before is None or before.get(key) != after[key]}
                gone = [] if before is None else [key for key in before if key not in after]
                yield f"data: {json.dumps({'parts': changed, 'order': [*after], 'gone': gone})}\n\n"
                before = after
                await anyio.sleep(EVENT_S)
        finally:
            self._listeners -= 1

    # --- commands ---------------------------------------------------------------------------------------------------

    async def _command(self, request: Request) -> Response:
        values = await _form(request)
        if not self.guard.may_command(request.cookies.get(COOKIE, ""), values.get("form_token", "")):
            raise HTTPException(403)
        moment = await anyio.to_thread.run_sync(self._moment, request, "now")
        key = str(request.path_params.get("key", ""))
        back = values.get("back", "")
        back = back if back.startswith(f"{moment.asked.base}/") and not back.startswith("//") else moment.asked.to()
        told = str(request.path_params["command"])
        made = await anyio.to_thread.run_sync(lambda: errand(told, values, self._reader(key), back))
        self._told += 1
        self._errands[self._told] = made
        while len(self._errands) > ERRANDS_KEPT:
            self._errands.popitem(last=False)
        log.info("told by the page: %s", made.label)
        return RedirectResponse(moment.asked.to("told", f"{self._told}"), 303)

    async def _errand(self, request: Request) -> Response:
        asked = (await anyio.to_thread.run_sync(self._moment, request, "now")).asked
        made = self._errands.get(int(request.path_params["number"]))
        if made is None or not asked.form_token:
            raise HTTPException(404)
        shown = el("section", *made.outcome(), el("p", el("a", "back", href=made.back)), id="part-errand")
        refresh = {} if made.is_over else {"refresh": "2"}
        main = el("main", el("h1", made.label), shown, id="main")
        return HTMLResponse(layout.document(made.label, asked, [main]), headers=refresh)

    async def _login(self, request: Request) -> Response:
        asked = Asked()
        said, status = "", 200
        if request.method == "POST":
            cookie = self.guard.opens((await _form(request)).get("token", ""))
            if cookie is not None:
                response = RedirectResponse("/", 303)
                response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
                return response
            said, status = "This is not the token, or it was tried too often.", 403
        if not self.guard.token:
            said = "This page only shows: it was started without a token."
            return HTMLResponse(layout.message("Log in", [el("p", said)], asked), status)
        typed = el(
            "input",
            type="password",
            name="token",
            autocomplete="current-password",
            required=True,
            aria_label="token",
            autofocus=True,
        )
        form = el("form", typed, el("button", "Log in", type="submit"), method="post", action="/login", class_="login")
        told = el("p", "Whoever knows the token of this page may tell the run what to do.")
        return HTMLResponse(
            layout.message("Log in", [el("p", said, class_="bad") if said else None, told, form], asked), status
        )

    async def _logout(self, request: Request) -> Response:
        del request
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response


@dataclass(frozen=True)
class Guarded:
    """Refuses what :class:`~holdfast.page.guard.Guard` refuses, and gives every answer its headers."""

    inside: ASGIApp
    guard: Guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.inside(scope, receive, send)
            return
        request = Request(scope)

        async def send_own(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(each for each in own if each[0] not in given)]
            await send(message)

        await self._answer(request)(scope, receive, send_own)

    def _answer(self, request: Request) -> ASGIApp:
        guard, path = self.guard, request.url.path
        if not guard.knows_host(request.headers.get("host", "")):
            return _message(HTTPStatus.MISDIRECTED_REQUEST, "This page is not known under this name.")
        if request.method not in ("GET", "HEAD", "POST"):
            return _message(HTTPStatus.METHOD_NOT_ALLOWED, "This page is read.")
        is_open = path == "/login" or path.startswith("/assets/")
        if guard.needs_token and not is_open and not guard.knows_cookie(request.cookies.get(COOKIE, "")):
            return (
                RedirectResponse("/login", 303)
                if request.method != "POST"
                else _message(HTTPStatus.FORBIDDEN, "Log in first.")
            )
        return self.inside


def _message(status: HTTPStatus, text: str) -> Response:
    return HTMLResponse(layout.message(status.phrase, [el("p", text)], Asked()), status)


async def _refusal(request: Request, error: HTTPException) -> Response:
    del request
    status = HTTPStatus(error.status_code)
    texts = {404: "There is no such view.", 403: "Log in first; or the page was started again since: load it again."}
    return _message(status, texts.get(status, error.detail))


async def _failure(request: Request, error: Exception) -> Response:
    del request
    if isinstance(error, HoldfastError):
        return HTMLResponse(layout.message("This cannot be shown", [failure(error)], Asked()), 503)
    log.error("a view has failed", exc_info=error)
    return _message(HTTPStatus.INTERNAL_SERVER_ERROR, f"Unforeseen {type(error).__name__}; the page's log has more.")


async def _form(request: Request) -> dict[str, str]:
    """Return what a form has sent."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MAX:
            raise HTTPException(413)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True))
    except ValueError:
        raise HTTPException(400) from None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
