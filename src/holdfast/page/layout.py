"""What is around each view: head, names of the views, style and scripts; and a view as parts of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from holdfast import __version__
from holdfast.page import epochs, letters, now, settings, sinks, sources, starts, state
from holdfast.page.html import Child, Html, el, join, link
from holdfast.page.model import Asked, Moment, Section
from holdfast.page.words import mark

View = Callable[[Moment], Iterator[Section]]

VIEWS: Mapping[str, tuple[str, View]] = {
    "now": ("Now", now.now),
    "sources": ("Sources", sources.sources),
    "sinks": ("Sinks", sinks.sinks),
    "epochs": ("Epochs", epochs.epochs),
    "state": ("State", state.state),
    "starts": ("Starts & snapshots", starts.starts),
    "letters": ("Dead letters", letters.letters),
    "settings": ("Settings", settings.settings),
}
"""The views, in the order of their names at the top."""

DOCTYPE = "<!doctype html>\n"


def fragments(moment: Moment) -> dict[str, Html]:
    """Return the parts of a view by their ids, the head of the page first."""
    found = {"head": _head(moment)}
    for section in VIEWS[moment.asked.view][1](moment):
        found[f"part-{section.key}"] = _section(section)
    return found


def page(moment: Moment) -> str:
    """Return a view as a whole page."""
    asked, parts = moment.asked, fragments(moment)
    title = VIEWS[asked.view][0]
    main = el(
        "main", *(parts[key] for key in parts if key != "head"), id="main", data_events=_events(asked), tabindex=-1
    )
    return document(f"{moment.pipeline}: {title}", asked, [parts["head"], main])


def document(title: str, asked: Asked, inside: Iterable[Child]) -> str:
    """Return a page: what is around it, and what is in it."""
    base = ""  # assets are the page's, whichever pipeline it shows
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · Holdfast"),
        el("link", rel="stylesheet", href=f"{base}/assets/page.css"),
        el("link", rel="stylesheet", href=f"{base}/assets/uPlot.min.css"),
        el("link", rel="icon", href=f"{base}/assets/icon.svg"),
        el("script", src=f"{base}/assets/uPlot.iife.min.js", defer=True),
        el("script", src=f"{base}/assets/page.js", defer=True),
    )
    foot = el(
        "footer",
        el("span", f"Holdfast {__version__}"),
        el("span", "Keys: 1 to 8 views · t light or dark · p stop updates · ? help", class_="keys"),
        link("log out", "/logout") if asked.form_token else None,
    )
    return DOCTYPE + el("html", head, el("body", *inside, foot), lang="en")


def _events(asked: Asked) -> str:
    return asked.to("events", view=asked.view, item=asked.item or None, page=asked.page)


def _section(section: Section) -> Html:
    heading = el("h2", section.title) if section.title else None
    return el("section", heading, section.body, id=f"part-{section.key}")


def _head(moment: Moment) -> Html:
    asked, status = moment.asked, moment.status
    level, _, _ = now.condition(moment)
    told = status.state if status is not None else "not running"
    names = [_name(at, key, asked) for at, key in enumerate(VIEWS, 1)]
    fleet = link("all pipelines", "/") if asked.base else None
    return el(
        "header",
        el(
            "div",
            fleet,
            el("strong", moment.pipeline or "no pipeline"),
            _shard(moment),
            mark(level, told),
            el("span", id="live"),
            class_="who",
        ),
        el("div", moment.reader.checkpoint, class_="small place"),
        el("nav", *names, class_="views", aria_label="Views"),
        id="head",
    )


def _name(at: int, key: str, asked: Asked) -> Html:
    href = asked.to() if key == "now" else asked.to(key)
    current = "page" if key == asked.view else None
    return link(VIEWS[key][0], href, aria_current=current, data_key=f"{at}")


def _shard(moment: Moment) -> Html | None:
    asked = moment.asked
    if asked.shard is not None:
        whole = replace(asked, shard=None)
        return el("span", f"shard {asked.shard} ", link("all", whole.to()))
    return el("span", f"{len(moment.shards)} shards") if moment.shards else None


def message(title: str, inside: Sequence[Child], asked: Asked) -> str:
    """Return a page that says something, and where to go on."""
    back = el("p", link("back", asked.to()))
    return document(title, asked, [el("main", el("h1", title), join(inside), back, id="main")])
