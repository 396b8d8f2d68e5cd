"""Renders a template as one file; the page loads nothing else, and its policy makes browsers refuse foreign content."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from portwright import __version__
from portwright.report import words

_ENVIRONMENT = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=words.clean,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS = (words.breakable, words.elide, words.several, words.number, words.share, words.size)
_ENVIRONMENT.filters |= {show.__name__: show for show in _FILTERS}


def render_page(template: str, *, script: bool = False, **shown: Any) -> str:
    """A page as text; all values in `shown` are escaped."""
    style, code = read("drawing.css") + read("style.css"), read("script.js") if script else Markup()
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'"
    policy += f"; style-src '{_digest(style)}'; script-src '{_digest(code)}'"
    ours = {"policy": Markup(policy), "style": style, "script": code, "version": __version__}
    return _ENVIRONMENT.get_template(template).render(**ours, **shown)


def read(name: str) -> Markup:
    """The text of one of our style sheets or scripts."""
    return Markup(files(__package__).joinpath("templates", name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
