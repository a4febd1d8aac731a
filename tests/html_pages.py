"""Checks of HTML pages: their tags are balanced, their ids are unique, and nothing is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})


class Page(HTMLParser):
    """The text, the ids and the tables of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert html.startswith("<!doctype html>")
        assert not self.open, f"not closed: {self.open}"
        assert len(self.ids) == len(set(self.ids)), "an id stands twice"
        assert set(self.references) <= set(self.ids)
        assert not re.search(r'(src|href)="(?!#|data:)', html), "the page fetches something"

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag, attrs):
        values = dict(attrs)
        if "id" in values:
            self.ids.append(values["id"])
        if values.get("xlink:href", "").startswith("#"):
            self.references.append(values["xlink:href"][1:])
        if clip := re.fullmatch(r"url\(#(.*)\)", values.get("clip-path") or ""):
            self.references.append(clip[1])
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += " ".join(data.split())
