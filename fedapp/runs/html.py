"""HTML pages of one look."""

from __future__ import annotations

from jinja2 import Environment

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
 body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto;
   padding: 0 1rem }
 h1 { font-size: 1.35rem } h2 { font-size: 1.1rem; margin-top: 2rem }
 table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
 td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #eee }
 svg, img { max-width: 100%; height: auto } code { color: #555 }
</style></head><body>
{{ body | safe }}
</body></html>
"""


def render(template: str, **values: object) -> str:
    """Return a Jinja template with its values filled in, escaped unless it says ``safe``."""
    return Environment(autoescape=True).from_string(template).render(**values)


def page(title: str, body: str) -> str:
    """Return a whole page; ``body`` is HTML."""
    return render(PAGE, title=title, body=body)
