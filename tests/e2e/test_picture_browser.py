"""The page of a plan in a real browser: quiet, offline, legible at any width, and usable by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import NAMES, Chromium, find_chromium
from plan_documents import (
    hostile_plan,
    make_layer,
    placed_plan,
    refusing_plan,
    staged_plan,
    streamed_plan,
)

from portwright.graph.picture import write_page, write_svgs

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason=f"no browser ({', '.join(NAMES)}); Debian: apt-get install chromium"
)

# Text that leaves its box: wider than the window, than a cell, or than what holds it; what may scroll is left out.
OVERFLOWING = """
(() => {
  const found = [];
  const say = (e, why) => found.push(`${why}: <${e.tagName.toLowerCase()} class="${e.getAttribute("class") || ""}"> ${e.textContent.trim().slice(0, 60)}`);
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) say(root, `page is ${root.scrollWidth} wide`);
  document.querySelectorAll("details").forEach((d) => (d.open = true));
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg, .excerpt, .scroll, .skip, script") || !e.textContent.trim() || !e.getClientRects().length) continue;
    const range = document.createRange();
    range.selectNodeContents(e);
    const inside = range.getBoundingClientRect(), box = e.getBoundingClientRect();
    if (inside.width && (inside.right > root.clientWidth + 1 || inside.left < -1)) say(e, "leaves the window");
    if (/^(TD|TH|DD|DT|LI|P|H1|H2|H3|H4|FIGCAPTION)$/.test(e.tagName) && inside.right > box.right + 1) say(e, "leaves its box");
  }
  for (const text of document.querySelectorAll("svg.fabric text")) {
    const rect = text.parentElement.querySelector("rect").getBoundingClientRect(), box = text.getBoundingClientRect();
    if (box.left < rect.left - 1 || box.right > rect.right + 1 || box.top < rect.top - 1 || box.bottom > rect.bottom + 1)
      say(text, "leaves its rectangle");
  }
  return found;
})()
"""
# Pairs of words that lie over each other, such as two labels in one place.
OVERLAPPING = """
(() => {
  const boxes = [...document.querySelectorAll("td, th, dt, dd, figcaption, .capacity span, .strip .name, .axis span, svg.fabric text, p, h1, h2, h3, h4, li")]
    .filter((e) => e.getClientRects().length && e.textContent.trim() && !e.closest(".skip"))
    .map((e) => { const r = document.createRange(); r.selectNodeContents(e); return [e, r.getBoundingClientRect()]; });
  const found = [];
  boxes.forEach(([a, x], i) => boxes.slice(i + 1).forEach(([b, y]) => {
    if (a.contains(b) || b.contains(a) || (a.closest("svg") && a.parentElement === b.parentElement)) return;
    const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left), high = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
    if (wide > 2 && high > 3) found.push(`${a.textContent.trim().slice(0, 40)} | ${b.textContent.trim().slice(0, 40)}`);
  }));
  return found;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    started = Chromium(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def _several() -> dict[str, Any]:
    return {"targets": {"csx": refusing_plan(), "ipu": staged_plan(), "gpu": streamed_plan()}}


def _crowded() -> dict[str, Any]:
    """Rectangles from wide to a sliver, upright and flat, with names long and short."""
    plan = placed_plan(0)
    names = ("fc", "transformer.encoder.layers.17.attention", "层.块", "W" * 30)
    plan["layers"] = [
        make_layer(
            f"{names[i % 4]}{i}",
            f"Kind{i % 9}",
            rectangle={
                "x": 37 * (i % 20),
                "y": 90 * (i // 20),
                "width": 37 - i % 31,
                "height": 90 - 7 * (i % 12),
            },
            cores=100,
            share_of_fabric=0.001,
            refused=i % 3,
        )
        for i in range(200)
    ]
    return plan


PLANS = {
    "refusing": refusing_plan,
    "streamed": streamed_plan,
    "several": _several,
    "hostile": hostile_plan,
    "crowded": _crowded,
}


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (480, "dark"), (390, "light"), (2560, "dark")]
)
@pytest.mark.parametrize("name", PLANS)
def test_a_page_is_quiet_and_nothing_leaves_its_box(
    browser: Chromium, tmp_path: Path, name: str, width: int, scheme: str
) -> None:
    page = write_page(PLANS[name](), tmp_path / "plan.html")
    browser.open(page, width, scheme)
    assert browser.run(OVERFLOWING) == []
    assert browser.run(OVERLAPPING) == []
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
    assert browser.run("typeof window.pwned") == "undefined"


def test_rectangles_and_refused_rows_are_on_the_page(browser: Chromium, tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("def forward(x):\n    return x.flip(0)\n")
    browser.open(write_page(refusing_plan(str(source), 2), tmp_path / "plan.html"))
    assert browser.run("document.querySelectorAll('svg.fabric rect.layer').length") == 12
    assert browser.run("document.querySelectorAll('table.refused tbody tr').length") == 2
    assert browser.run("document.querySelector('.excerpt mark').innerText") == "2      return x.flip(0)"
    assert browser.run("document.querySelector('a.source').href") == source.as_uri()
    sizes = browser.run(
        "[...document.querySelectorAll('svg.fabric rect.layer')].map(r => r.getBoundingClientRect().width * r.getBoundingClientRect().height)"
    )
    assert sizes[0] / sizes[1] == pytest.approx(700 * 100 / (75 * 600), rel=0.02)


def test_the_pages_policy_stops_a_script_that_is_not_its_own(browser: Chromium, tmp_path: Path) -> None:
    browser.open(write_page(placed_plan(), tmp_path / "plan.html"))
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s); "
        "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i); })()"
    )
    assert browser.run("typeof window.pwned") == "undefined"
    assert len(browser.complaints) == 2


def test_all_is_there_without_the_script(browser: Chromium, tmp_path: Path) -> None:
    page = write_page(_several(), tmp_path / "plan.html")
    heights = "[...document.querySelectorAll('.target')].map(s => s.getBoundingClientRect().height)"
    browser.open(page, script=False)
    assert min(browser.run(heights)) > 100
    assert browser.run("getComputedStyle(document.querySelector('.filter')).display") == "none"
    browser.open(page)
    assert [height > 100 for height in browser.run(heights)] == [True, False, False]


def test_printing_shows_every_target(browser: Chromium, tmp_path: Path) -> None:
    browser.open(write_page(_several(), tmp_path / "plan.html"))
    browser.ask("Emulation.setEmulatedMedia", media="print")
    try:
        shown = browser.run("[...document.querySelectorAll('.target')].map(s => getComputedStyle(s).display)")
        assert shown == ["block"] * 3
        assert browser.run("getComputedStyle(document.querySelector('.tabs')).display") == "none"
    finally:
        browser.ask("Emulation.setEmulatedMedia", media="")


def test_tabs_and_rectangles_by_keyboard(browser: Chromium, tmp_path: Path) -> None:
    browser.open(write_page(_several(), tmp_path / "plan.html"))
    browser.run("document.querySelector('.tabs a').focus()")
    browser.press("ArrowRight")
    assert browser.run("document.activeElement.textContent") == "ipu"
    assert browser.run("[...document.querySelectorAll('.target')].map(s => s.hidden)") == [True, False, True]
    browser.press("ArrowLeft")
    browser.press("Tab")
    group = browser.run("document.activeElement.dataset.group")
    assert group == "t0-layer-0", "the first rectangle comes behind the tabs"
    browser.press("Enter")
    browser.run("new Promise(done => setTimeout(done, 100))")
    assert browser.run("location.hash") == f"#{group}"
    assert browser.run(f"document.getElementById('{group}').matches(':target')")


def test_the_keyboard_stops_once_at_alike_layers(browser: Chromium, tmp_path: Path) -> None:
    browser.open(write_page(placed_plan(10), tmp_path / "plan.html"))
    browser.run("document.querySelector('svg.fabric a').focus()")
    stops = []
    for _ in range(3):
        stops.append(browser.run("document.activeElement.dataset.group"))
        browser.press("Tab")
    assert stops == ["t0-layer-0", "t0-layer-1", "t0-layer-2"]


def test_a_row_lights_its_rectangles(browser: Chromium, tmp_path: Path) -> None:
    browser.open(write_page(placed_plan(10), tmp_path / "plan.html"))
    point = browser.run(
        "(() => { const r = document.getElementById('t0-layer-1'); r.scrollIntoView({block: 'center', behavior: 'instant'}); "
        "const b = r.getBoundingClientRect(); return {x: b.x + 30, y: b.y + 10}; })()"
    )
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", **point)
    assert browser.run("document.querySelectorAll('svg.fabric a.lit').length") == 10


def test_a_link_into_another_target_opens_it(browser: Chromium, tmp_path: Path) -> None:
    browser.open(write_page(_several(), tmp_path / "plan.html"))
    browser.run("location.hash = '#t2-layer-1'")
    browser.run("new Promise(done => setTimeout(done, 100))")
    assert browser.run("[...document.querySelectorAll('.target')].map(s => s.hidden)") == [True, True, False]


def test_ops_are_filtered_as_one_types(browser: Chromium, tmp_path: Path) -> None:
    plan = placed_plan()
    plan["ops"] = [
        {"op": f"aten.{name}.default", "how": "native", "count": 1, "phases": [], "places": []}
        for name in ("mm", "flip", "relu")
    ]
    browser.open(write_page(plan, tmp_path / "plan.html"))
    browser.run(
        "(() => { document.querySelector('.all-ops').open = true; const i = document.querySelector('.filter input'); "
        "i.value = 'FLIP'; i.dispatchEvent(new Event('input')); })()"
    )
    assert browser.run(
        "[...document.querySelectorAll('.ops tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].innerText)"
    ) == ["aten.flip.default"]


@pytest.mark.parametrize("name", [name for name in PLANS if name != "several"])
def test_drawings_of_their_own_keep_their_words_inside(browser: Chromium, tmp_path: Path, name: str) -> None:
    for path in write_svgs(PLANS[name](), tmp_path):
        browser.open(path)
        outside = browser.run(
            "(() => { const [, , w, h] = document.documentElement.getAttribute('viewBox').split(' ').map(Number); "
            "return [...document.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect(); "
            "return b.right > w || b.left < 0 || b.bottom > h; }).map(t => t.textContent); })()"
        )
        assert outside == []
        assert browser.complaints == []
