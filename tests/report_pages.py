"""What every report page must be: whole in itself, readable by machine and by ear, numbers beside every plot."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """The parts of a page that are checked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.sections: list[list[tuple[str, dict[str, str | None]]]] = []
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.sections.append([])
        elif self.sections and "section" in self.open:
            self.sections[-1].append((tag, given))
        if "id" in given and "svg" not in self.open:
            self.ids.append(str(given["id"]))
        if tag == "a" and "svg" not in self.open:
            self.links.append(str(given.get("href")))
        self.loaded += [str(given[key]) for key in ("src", "data", "action") if key in given]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"closed before it was opened: {tag}"
        assert self.open.pop() == tag, f"{tag} crosses another tag"


def check_page(text: str) -> Page:
    """A page that is well formed, loads nothing, runs nothing, and can be heard and printed as well as seen."""
    page = Page(text)
    assert len(page.ids) == len(set(page.ids)), "an id is there twice"
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "script" not in page.tags
    assert not page.loaded
    assert "@import" not in text
    assert "url(http" not in text
    assert 'http-equiv="Content-Security-Policy"' in text
    assert "@media print" in text
    assert "prefers-color-scheme: dark" in text
    for section in page.sections:
        tags = [tag for tag, _ in section]
        if "svg" in tags:
            assert "table" in tags, "a plot without its numbers"
            svg = next(given for tag, given in section if tag == "svg")
            assert svg["role"] == "img"
            assert svg["aria-label"]
            assert "text" in tags, "text that is drawn, not written"
    assert not re.search(r"fill: ?#(000000|fff)", text), "a colour that dark pages hide"
    return page
