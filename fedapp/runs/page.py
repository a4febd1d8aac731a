"""HTML pages of runs: one style for narrow and wide screens, light and dark, with pictures inside."""

from __future__ import annotations

import io
import re

from jinja2 import Environment
from matplotlib.figure import Figure

from fedapp.runs.figures import write_svg

DARK = {
    "#ffffff": "var(--paper)",
    "#000000": "var(--ink)",
    "#333333": "var(--ink)",
    "#8a8a8a": "#9aa0a8",
    "#c9c9c9": "#4a5058",
    "#e6e6e6": "#2d3238",
    "#0072b2": "#4c9fe6",
    "#d55e00": "#f0803c",
    "#009e73": "#2fbf95",
    "#cc79a7": "#dd8fba",
    "#e69f00": "#eab030",
    "#56b4e9": "#a6dcff",
}
"""The colours of figures, and what stands for them on a dark page."""

STYLE = """
 :root { color-scheme: light dark; --paper: #ffffff; --ink: #222222; --muted: #5f6670;
   --line: #e2e4e8; --shade: #f4f5f7 }
 @media (prefers-color-scheme: dark) { :root { --paper: #15181c; --ink: #e4e6ea; --muted: #a0a7b1;
   --line: #343a42; --shade: #1e2329; DARK } }
 * { box-sizing: border-box }
 body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
   max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; overflow-wrap: break-word }
 h1 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .4rem }
 h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem }
 p, ul, dl { margin: .5rem 0; max-width: 46rem } ul { padding-left: 1.2rem }
 code { font: .88em/1.5 ui-monospace, monospace; overflow-wrap: anywhere }
 pre { background: var(--shade); padding: .6rem .8rem; border-radius: 6px; white-space: pre-wrap;
   margin: .5rem 0 }
 .muted, figcaption { color: var(--muted); font-size: .9rem }
 .wide { overflow-x: auto; margin: .6rem 0 }
 table { border-collapse: collapse; font-variant-numeric: tabular-nums }
 td, th { padding: .3rem 1.1rem .3rem 0; text-align: left; vertical-align: top;
   border-bottom: 1px solid var(--line) }
 thead th { color: var(--muted); font-weight: 600; font-size: .88rem; vertical-align: bottom }
 tbody th { font-weight: 500 } .named tbody th { min-width: 8.5rem;
   position: sticky; left: 0; background: var(--paper) }
 .lines td, .wide code { white-space: nowrap } .wide td code { white-space: normal }
 .number { text-align: right } td.number { white-space: nowrap }
 .facts td, .facts th { padding-right: .7rem } .facts tbody th { min-width: 7rem }
 .figures { display: grid; gap: 1rem;
   grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)) }
 figure { margin: 0; min-width: 0 }
 figure svg { display: block; width: 100%; height: auto; fill: currentColor }
 .light { background: #ffffff; color: #222222; border-radius: 6px; padding: .4rem; overflow-x: auto }
 .light svg { min-width: 36rem }
 .swatch { width: 1.75rem; height: .6rem; margin-right: .5rem; flex: none;
   margin-top: .45rem }
 .legend { list-style: none; padding: 0; max-width: none; display: grid; gap: .1rem 1.5rem;
   grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)) }
 .run { display: flex }
 details { margin: .6rem 0 } summary { cursor: pointer; color: var(--muted) }
"""

PAGE_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{{ style | safe }}</style></head><body>
{{ body | safe }}
</body></html>
"""

FIGURE = """<figure{% if kind %} class="{{ kind }}"{% endif %}><svg role="img" aria-label="{{ label }}"
{{- svg | safe }}{% if caption %}<figcaption>{{ caption }}</figcaption>{% endif %}</figure>"""


def render(template: str, **values: object) -> str:
    """Return a Jinja template with its values filled in, HTML-escaped except for ``safe`` ones."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(**values)


def page(title: str, body: str) -> str:
    """Return an HTML page with this HTML ``body``."""
    dark = "; ".join(f"{_variable(color)}: {instead}" for color, instead in DARK.items())
    return render(PAGE_TEMPLATE, title=title, body=body, style=STYLE.replace("DARK", dark))


def adaptive(color: str) -> str:
    """Return a figure's colour in CSS, which is another on a dark page."""
    return f"var({_variable(color)}, {color.lower()})"


def _variable(color: str) -> str:
    return f"--c{color.lower().removeprefix('#')}"


def picture(figure: Figure, name: str, label: str, caption: str = "") -> str:
    """Return a figure as an HTML ``figure``: see :func:`inline_svg`."""
    buffer = io.StringIO()
    write_svg(figure, buffer)
    return inline_svg(buffer.getvalue(), name, label, caption)


def inline_svg(svg: str, name: str, label: str, caption: str = "") -> str:
    """Return the text of an SVG file as an HTML ``figure``.

    ``name`` keeps its ids apart from those of others, and ``label`` stands for it where it is not seen.
    Its colours follow the page's, unless it has images: then it stays on white.
    """
    text = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    light = "<image" in text
    if not light:
        text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _adapted, text)
    return render(
        FIGURE, kind="light" if light else "", label=label, svg=text[len("<svg") :], caption=caption
    )


def _adapted(match: re.Match[str]) -> str:
    name, color = match.groups()
    return f"{name}: {adaptive(color) if color in DARK else color}"
