"""Pages in general: one file, escaped, under a policy that lets nothing in."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from portwright.report import page
from portwright.report.page import render_page
from portwright.report.svg import Chart, Piece, bar, draw, legend, round_values, sheet
from portwright.report.words import breakable, fit, number, several

ROOT = Path(__file__).parents[3]
HOSTILE = "</script><b onclick='x'>\x00\u202e\udc80{{ 7 * 7 }}"


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@pytest.mark.parametrize("script", [True, False])
def test_the_policy_lets_in_what_is_ours_and_nothing_else(script: bool) -> None:
    text = render_page("demo.html.j2", script=script, tasks=[])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(scripts) == script
    assert rules == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "style-src": f"'{digest(style)}'",
        "script-src": f"'{digest(''.join(scripts))}'",
    }


def test_what_is_shown_is_text() -> None:
    text = render_page("demo.html.j2", tasks=[(HOSTILE, HOSTILE, 1.0, HOSTILE)])
    assert "<b " not in text
    assert "</script>" not in text
    assert text.count("&lt;/script&gt;&lt;b onclick=&#39;x&#39;&gt;\ufffd\ufffd\ufffd{{ 7 * 7 }}") == 4
    assert re.search(r'href="&lt;/script&gt;[^"]*"', text)


def test_a_value_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render_page("demo.html.j2")


def test_no_template_trusts_what_it_is_given() -> None:
    folder = Path(page.__file__).parent / "templates"
    pages = [path.read_text(encoding="utf-8") for path in folder.glob("*.j2")]
    assert len(pages) > 4
    for text in pages:
        assert not re.search(r'\|\s*safe|autoescape|<\w[^>{]*\sstyle="', text)
    assert '"report/templates/*"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_elements_escape_their_texts_and_values() -> None:
    drawn = draw(
        "text", HOSTILE, Markup("<tspan/>"), class_="a", aria_label=HOSTILE, x=1 / 3, y=None, href=""
    )
    found = ElementTree.fromstring(drawn)
    assert found.text == found.attrib["aria-label"] == "</script><b onclick='x'>\ufffd\ufffd\ufffd{{ 7 * 7 }}"
    assert {key: found.attrib[key] for key in ("class", "x")} == {"class": "a", "x": "0.33"}
    assert not {"y", "href"} & found.attrib.keys()


def test_bars_are_in_proportion() -> None:
    drawn = ElementTree.fromstring(
        bar([Piece(3, "a", "three"), Piece(1, "b", "one", "row")], whole=8, mark=6)
    )
    rects = [rect for rect in drawn.iter("rect") if rect.get("class") != "ground"]
    assert [(rect.get("x"), rect.get("width")) for rect in rects] == [("0", "375"), ("375", "125")]
    assert [link.get("href") for link in drawn.iter("a")] == ["#row"]
    assert [path.get("d") for path in drawn.iter("path")] == ["M750.00 -2V12"]


def test_a_chart_places_its_steps_and_values() -> None:
    chart = Chart("losses", 40, 0.0, 4.0)
    chart.grid([1.0, 3.0], str)
    chart.line([(1, 4.0), (40, 0.0)], "original")
    chart.dot(20.5, 2.0, "bad", "the middle", 3)
    drawn = ElementTree.fromstring(chart.finish())
    (line,), (dot,) = list(drawn.iter("polyline")), list(drawn.iter("circle"))
    assert line.attrib["points"] == "1.25,0.00 98.75,100.00"
    assert (dot.get("cx"), dot.get("cy")) == ("50.00%", "50.00%")
    texts = [text.text for text in drawn.iter("text")]
    assert texts == ["1.0", "3.0", "1", "5", "10", "15", "20", "25", "30", "35", "40"]


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.9), (1e-9, 3e-9), (-7.0, 1234.5)])
def test_round_values_lie_between(low: float, high: float) -> None:
    found = round_values(low, high)
    assert 2 <= len(found) <= 6
    assert low <= found[0] < found[-1] <= high * (1 + 1e-12)


def test_a_sheet_is_one_svg_with_its_colours() -> None:
    text = sheet(
        "Memory & more",
        [("words " * 50, bar([Piece(1, "part-weights", "w")]), 20), legend([Piece(0, "over", "x")])],
    )
    root = ElementTree.fromstring(text)
    names = {"svg": "http://www.w3.org/2000/svg"}
    assert root.findtext("svg:title", namespaces=names) == "Memory & more"
    assert ".part-weights" in (root.findtext("svg:style", namespaces=names) or "")
    heights = [float(part.attrib["y"]) for part in root.findall("svg:g/svg:text", names)]
    assert heights == sorted(heights)
    assert len(heights) == 4, "the title, and three lines of words"


def test_words() -> None:
    assert breakable("a/b.c<") == "a/<wbr>b.<wbr>c&lt;"
    assert (several(1, "place"), several(1200, "place")) == ("1 place", "1,200 places")
    assert (number(999999), number(1.5e9), number(0.12345)) == ("999,999", "1.50 G", "0.123")
    assert fit("层" * 10, 60, 10) == "层层…层层"
    assert fit("abc", 60, 10) == "abc"
