"""Sphinx: `make docs` builds this folder strictly into docs/_build/html."""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import fedapp

project = "fedapp"
author = "The fedapp authors"
release = fedapp.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"fedapp {release}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#56b4e9"},
}
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_copyright = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
# Pydantic's own methods and fields are not this project's interface.
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "exclude-members": "model_config, model_post_init",
}


def escape_markup(app, what, name, obj, options, lines):
    """Keep [n, *input_shape] and |S_t| from being read as markup, outside literals."""
    for number, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [re.sub(r"(?<![\\*\w])\*(?=\w)|\|", r"\\\g<0>", part) for part in parts[::2]]
        lines[number] = "``".join(parts)
    # Napoleon would take what stands before a colon for the attribute's type.
    if what in ("attribute", "data", "property"):
        lines[:1] = [line.replace(": ", " – ", 1) for line in lines[:1]]


BLOCK = "text-align: center; margin: 1rem 0; padding: 0.4rem 0; overflow-x: auto"


def visit_math(self, node):
    """Write MathML, which browsers draw themselves: formulas need no script and no network."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    self.body.append(f'<div style="{BLOCK}">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def keep_together(app, doctree, docname):
    """Put no end of a line into "25 %" and "C = 0.1"."""
    for text in list(doctree.findall(nodes.Text)):
        if not isinstance(text.parent, (nodes.literal, nodes.math, nodes.FixedTextElement)):
            found = re.sub(r"(?<=\d) (?=%)", "\u00a0", text)
            found = re.sub(r"(?<=\b\w) = (?=\S)", "\u00a0=\u00a0", found)
            if found != text:
                text.parent.replace(text, nodes.Text(found))


def setup(app):
    app.connect("doctree-resolved", keep_together)
    app.connect("autodoc-process-docstring", escape_markup, priority=400)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
