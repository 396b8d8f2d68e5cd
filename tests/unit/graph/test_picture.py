"""The picture of a plan: whole, honest, harmless, and the same each time."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from plan_documents import (
    HOSTILE,
    hostile_plan,
    make_layer,
    make_plan,
    make_refusal,
    placed_plan,
    refusing_plan,
    staged_plan,
    streamed_plan,
)

from portwright.errors import UserError
from portwright.graph.picture import make_page, memory_svg, wafer_svg, write_page, write_svgs
from portwright.graph.picture.drawing import read_document
from portwright.report.words import clean, elide, share

SVG = "{http://www.w3.org/2000/svg}"
_VOID = {"meta", "link", "input", "wbr", "br", "img", "hr"}
_INLINE = {"wbr", "code", "span", "strong", "a", "mark"}
_PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "placed": placed_plan,
    "streamed": streamed_plan,
    "staged": staged_plan,
    "refusing": refusing_plan,
    "hostile": hostile_plan,
    "resident": lambda: make_plan([make_layer("a")], mode="resident", capacity_bytes=None, fits=None),
    "no layer": lambda: make_plan([]),
    "several": lambda: {"targets": {"csx": placed_plan(), "ipu": staged_plan(), "gpu": refusing_plan()}},
}
each_plan = pytest.mark.parametrize("make", _PLANS.values(), ids=_PLANS.keys())
_SINGLE = {name: make for name, make in _PLANS.items() if name != "several"}
each_single_plan = pytest.mark.parametrize("make", _SINGLE.values(), ids=_SINGLE.keys())


class Page(HTMLParser):
    """Reads a page strictly: every element closed in its order, ids unique, links by name."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.texts += [] if tag in _INLINE else [" "]
        assert len(found) == len(attrs), f"an attribute twice in <{tag}>"
        self.elements.append((tag, found))
        if tag not in _VOID:
            self.open.append(tag)
        self.ids += [found["id"]] if found.get("id") else []  # type: ignore[list-item]
        self.links += [found["href"]] if found.get("href") else []  # type: ignore[list-item]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> inside <{self.open[-1]}>"
        self.open.pop()
        self.texts += [] if tag in _INLINE else [" "]

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def named(self, tag: str, style: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.elements if t == tag and style in (a.get("class") or "").split()]


def check_page(text: str) -> Page:
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert [link for link in page.links if link.startswith("#") and link[1:] not in page.ids] == []
    assert {link.split(":")[0] for link in page.links if not link.startswith("#")} <= {"file", "data"}
    assert len(page.scripts) == 1
    assert not [
        tag for tag, _ in page.elements if tag in {"img", "iframe", "object", "embed", "base", "form"}
    ]
    assert not [name for _, a in page.elements for name in a if name.startswith("on") or name == "src"]
    return page


@each_plan
def test_a_page_is_whole_and_fetches_nothing(make: Callable[[], dict[str, Any]]) -> None:
    text = make_page(make())
    page = check_page(text)
    assert "Estimated by portwright, not the vendor’s output." in page.text
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(|@font-face", text)
    text.encode("utf-8")


@each_single_plan
def test_drawings_are_well_formed_and_say_who_made_them(make: Callable[[], dict[str, Any]]) -> None:
    for draw in (wafer_svg, memory_svg):
        text = draw(make())
        root = ElementTree.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert "Estimated by portwright, not the vendor's output." in " ".join(root.itertext())
        assert not root.findall(f".//{SVG}script")
        assert not root.findall(f".//{SVG}a"), "a drawing of its own has nothing to lead to"
        assert not [name for part in root.iter() for name in part.attrib if name.endswith(("href", "src"))]
        width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
        for part in root.iter():
            for name in ("x", "y", "width", "height"):
                assert -1 <= float(part.get(name, 0)) <= max(width, height)


@each_plan
def test_the_same_plan_gives_the_same_picture(make: Callable[[], dict[str, Any]]) -> None:
    plan = make()
    kept = copy.deepcopy(plan)
    for draw in (make_page,) if "targets" in plan else (make_page, wafer_svg, memory_svg):
        assert draw(plan) == draw(make())
    assert plan == kept, "drawing changed the plan"


def test_hostile_names_are_text_and_nothing_else() -> None:
    text = make_page(hostile_plan())
    page = check_page(text)
    assert "<script>window.pwned=1</script>" in page.text
    assert text.count("<script>") == 1
    assert "\u202e" not in text
    assert "\x00" not in text
    assert "层.块.嵌入🧠.ünïcödé.ॐ" in page.text


@pytest.mark.parametrize("name", HOSTILE)
def test_clean_text_can_stand_in_xml(name: str) -> None:
    text = escape(clean(name))
    assert ElementTree.fromstring(f'<a b="{text}">{text}</a>').text == (clean(name) or None)
    clean(name).encode("utf-8")


def test_rectangles_lie_on_the_fabric_to_scale() -> None:
    plan = placed_plan(10)
    root = ElementTree.fromstring(wafer_svg(plan))
    ground = next(r for r in root.iter(f"{SVG}rect") if r.get("class") == "ground")
    scale = float(ground.attrib["width"]) / 757
    drawn = [r for r in root.iter(f"{SVG}rect") if "layer" in (r.get("class") or "").split()]
    assert len(drawn) == len(plan["layers"])
    for rect, layer in zip(drawn, plan["layers"], strict=True):
        for side in ("x", "y", "width", "height"):
            assert float(rect.attrib[side]) == pytest.approx(layer["rectangle"][side] * scale, abs=0.01)
        title = rect.find(f"{SVG}title")
        assert title is not None
        assert title.text is not None
        assert title.text.startswith(layer["name"])
        assert f"{layer['cores']:,} cores" in title.text


def test_a_name_is_hidden_where_its_rectangle_is_too_small() -> None:
    root = ElementTree.fromstring(wafer_svg(placed_plan(10)))
    names = {"".join(t.itertext()) for t in root.iter(f"{SVG}text")}
    assert {"token", "blocks.0", "blocks.9"} <= names
    assert "loss" not in names


def test_a_corner_in_use_is_enlarged_beside_the_whole_fabric() -> None:
    small = placed_plan(0)
    small["layers"] = [
        make_layer(
            f"fc.{i}",
            rectangle={"x": 50 * i, "y": 0, "width": 50, "height": 60},
            cores=3000,
            share_of_fabric=0.004,
        )
        for i in range(4)
    ]
    page = make_page(small)
    assert "the whole fabric, 757 × 996 cores" in page
    assert "the part in use, 200 × 60 cores" in page
    assert page.count('class="fabric"') == 2
    assert make_page(placed_plan(10)).count('class="fabric"') == 1


def test_rectangles_lead_to_the_row_of_their_layer() -> None:
    page = check_page(make_page(placed_plan(10)))
    rows = [a["id"] for tag, a in page.elements if tag == "tr" and a.get("id")]
    leading = [a["href"] for tag, a in page.elements if tag == "a" and a.get("data-group")]
    assert rows == ["t0-layer-0", "t0-layer-1", "t0-layer-2"]
    assert leading == ["#t0-layer-0", *["#t0-layer-1"] * 10, "#t0-layer-2"]


def test_alike_layers_share_a_row() -> None:
    page = check_page(make_page(streamed_plan(96)))
    assert "blocks.0–95 ×96" in page.text
    assert "blocks.42" not in [text.strip() for text in page.texts]
    assert "1,000 each" in page.text


def test_a_layer_that_differs_in_anything_has_its_own_row() -> None:
    layers = [make_layer(f"blocks.{i}", "Block") for i in range(6)]
    layers[3] = make_layer("blocks.3", "Block", parameters=1001)
    groups = read_document(make_plan(layers))[0].groups
    assert [g.name for g in groups] == ["blocks.0–2", "blocks.3", "blocks.4–5"]
    refused = make_refusal(module="blocks.1.mix.inner")
    groups = read_document(make_plan(layers[:3], refused=[refused]))[0].groups
    assert [g.name for g in groups] == ["blocks.0", "blocks.1", "blocks.2"]


def test_streaming_and_residence_claim_no_places() -> None:
    streamed = check_page(make_page(streamed_plan()))
    assert "Layers streamed through CS-2 (WSE-2)" in streamed.text
    assert "no layer has a place of its own" in streamed.text
    assert not streamed.named("svg", "fabric")
    resident = check_page(make_page(_PLANS["resident"]()))
    assert "nothing is placed" in resident.text
    assert not resident.named("svg", "fabric")


def test_stages_show_their_layers_and_memory() -> None:
    page = check_page(make_page(staged_plan()))
    assert "chip 0: blocks.0 … blocks.1" in page.text
    assert "500 MB of 900 MB; 50.0 % of the work" in page.text
    drawn = ElementTree.fromstring(wafer_svg(staged_plan()))
    assert "chip 1: blocks.2 … blocks.3" in " ".join(drawn.itertext())


def test_memory_bars_are_in_proportion() -> None:
    layers = [
        make_layer("a", memory_bytes={"weights": 300, "activations": 100}),
        make_layer("b", memory_bytes={"weights": 100}),
    ]
    plan = make_plan(layers, memory_bytes={"weights": 400, "activations": 100})
    root = ElementTree.fromstring(memory_svg(plan))
    widths: dict[str, list[float]] = {}
    for rect in root.iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None and title.text:
            widths.setdefault(title.text, []).append(float(rect.attrib["width"]))
    assert widths["weights: 300 B"][0] == pytest.approx(3 * widths["weights: 100 B"][0], rel=1e-3)
    assert widths["activations: 100 B"][1] == pytest.approx(widths["weights: 100 B"][0], rel=1e-3)


@pytest.mark.parametrize(
    ("needed", "capacity", "words"),
    [
        (50, 100, "50.0 %"),
        (300, 100, "300 %"),
        (5000, 100, "50 times"),
        (1, 10**12, "< 0.01 %"),
        (0, 100, "0 %"),
    ],
)
def test_capacity_in_words(needed: int, capacity: int, words: str) -> None:
    plan = make_plan([make_layer("a")], needed_bytes=needed, capacity_bytes=capacity)
    words = f"{words} of the capacity"
    assert words in check_page(make_page(plan)).text
    assert words in " ".join(ElementTree.fromstring(memory_svg(plan)).itertext())
    assert 'class="gauge"' in make_page(plan)


def test_without_a_capacity_nothing_is_said_of_it() -> None:
    plan = make_plan([make_layer("a")], capacity_bytes=None, fits=None)
    assert 'class="gauge"' not in make_page(plan)
    for drawn in (check_page(make_page(plan)).text, memory_svg(plan)):
        assert "of the capacity" not in drawn


def test_activations_alive_go_forward_and_back() -> None:
    layers = [
        make_layer("a", live_bytes={"forward": 10, "backward": 30}),
        make_layer("b", live_bytes={"forward": 20, "backward": 40}),
    ]
    page = check_page(make_page(make_plan(layers)))
    assert "most: 40 B, backward in b" in page.text
    course = next(a["d"] for t, a in page.elements if t == "path" and a.get("class") == "part-activations")
    assert course == "M0 200V150H250V100H500V0H750V50H1000V200Z"
    silent = make_plan([make_layer("a", live_bytes={"forward": 0, "backward": 0})])
    assert "Activations of the whole model" not in make_page(silent)


def test_refusals_tell_op_reason_cure_and_line(tmp_path: Path) -> None:
    source = tmp_path / "a model.py"
    source.write_text("import torch\n\ndef forward(x):\n    y = x.flip(0)  # <b>here</b>\n    return y\n")
    text = make_page(refusing_plan(str(source), 4))
    page = check_page(text)
    for words in (
        "aten.flip.default",
        "no lowering of flip",
        "Use portwright.layers.legal.flip.",
        f"{source}:4",
    ):
        assert words in page.text
    assert any(link.startswith("file:///") and link.endswith("/a%20model.py") for link in page.links)
    assert "and 2 more modules" in page.text
    assert "<mark>4      y = x.flip(0)  # &lt;b&gt;here&lt;/b&gt;</mark>" in text
    assert "✕ 2 places refused" in page.text
    assert "no line known" in page.text


def test_layers_with_refused_modules_are_marked() -> None:
    page = check_page(make_page(refusing_plan()))
    assert len(page.named("rect", "refused-layer")) == 3  # blocks 1, 2 and 3
    assert "outlined: has a refused op" in page.text


def test_no_refusal_is_said_in_words() -> None:
    assert "No op is refused." in make_page(placed_plan())
    assert "No op is refused." not in make_page(refusing_plan())


def test_source_is_shown_of_python_files_alone(tmp_path: Path) -> None:
    secret = tmp_path / "key.pem"
    secret.write_text("very secret\n")
    for file, line in (
        (str(secret), 1),
        (str(tmp_path), 1),
        (str(tmp_path / "gone.py"), 1),
        ("/dev/zero", 1),
        ("a\x00.py", 1),
    ):
        text = make_page(refusing_plan(file, line))
        assert "very secret" not in text
        assert 'class="excerpt"' not in text
    source = tmp_path / "short.py"
    source.write_bytes(b"x = 1 \xff\n")
    assert 'class="excerpt"' in make_page(refusing_plan(str(source), 1))
    assert 'class="excerpt"' not in make_page(refusing_plan(str(source), 9))


def test_source_is_read_anew_when_it_changes(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("first = 1\n")
    assert "first" in make_page(refusing_plan(str(source), 1))
    source.write_text("second = 2\n")
    os.utime(source, ns=(1, 1))
    assert "second" in make_page(refusing_plan(str(source), 1))


def test_legal_forms_are_counted_and_listed() -> None:
    swap = {
        "module": "mix",
        "what": "Tensor.flip",
        "form": "legal.flip",
        "reason": "no kernel",
        "file": "/m.py",
        "line": 7,
    }
    gain = {"removed": 2, "of": 3, "applied": False, "swaps": [swap]}
    page = check_page(make_page(placed_plan(legalise=gain)))
    assert "--legalise would remove 2 of 3 refusals: 1 legal form" in page.text
    assert "/m.py:7" in page.text
    applied = check_page(make_page(placed_plan(legalise={**gain, "applied": True})))
    assert "has removed 2 of 3 refusals" in applied.text
    assert "--legalise" not in make_page(placed_plan(legalise=None))


def test_estimates_show_formula_and_interval() -> None:
    page = check_page(make_page(placed_plan()))
    assert "150 kB 120 kB to 190 kB" in page.text
    assert "40.0 % 20.0 % to 80.0 %" in page.text
    assert "sum of what it takes" in page.text
    assert "published.network = 784-50-10" in page.text


def test_several_targets_stand_side_by_side() -> None:
    page = check_page(make_page(_PLANS["several"]()))
    assert [a["data-target"] for t, a in page.elements if t == "a" and "data-target" in a] == [
        "t0",
        "t1",
        "t2",
    ]
    assert [a["id"] for a in page.named("section", "target")] == ["t0", "t1", "t2"]
    assert "Targets side by side" in page.text
    assert "Targets side by side" not in make_page(placed_plan())


def test_thousands_of_layers_ops_and_refusals(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("x = 1\n" * 3000)
    layers = [make_layer(f"odd.{i}", f"Kind{i % 40}", parameters=i) for i in range(700)]
    refused = [make_refusal(module=f"odd.{i}", file=str(source), line=i + 1) for i in range(700)]
    places = [{"file": str(source), "line": i, "count": 1} for i in range(1, 20)]
    ops = [
        {"op": f"aten.op_{i}", "how": "native", "count": 1, "phases": [], "places": places}
        for i in range(300)
    ]
    plan = make_plan(layers, refused=refused, supported=False, ops=ops)
    text = make_page(plan)
    page = check_page(text)
    assert "640 more rows" in page.text
    assert "650 more refused places" in page.text
    assert "16 more lines" in page.text
    assert text.count('class="excerpt"') == 700
    assert len(text) < 12_000_000
    drawn = memory_svg(plan)
    assert "and 640 more layers" in drawn


def test_files_are_written_whole(tmp_path: Path) -> None:
    page = write_page(placed_plan(), tmp_path / "deep" / "plan.html")
    assert page == tmp_path / "deep" / "plan.html"
    assert page.read_text(encoding="utf-8") == make_page(placed_plan())
    drawn = write_svgs(placed_plan(), tmp_path / "drawings")
    assert [path.name for path in drawn] == ["wafer.svg", "memory.svg"]
    assert drawn[0].read_text(encoding="utf-8") == wafer_svg(placed_plan())
    with pytest.raises(UserError, match="folder has this name"):
        write_page(placed_plan(), tmp_path)


def test_drawing_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys, portwright.graph.picture; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 %"),
        (1e-9, "< 0.01 %"),
        (0.0588, "5.88 %"),
        (0.5, "50.0 %"),
        (0.9999, "100 %"),
    ],
)
def test_shares_as_percentages(value: Any, shown: str) -> None:
    assert share(value) == shown


def test_elided_names_keep_both_ends() -> None:
    assert elide("transformer.blocks.17", 100) == "transformer.blocks.17"
    short = elide("transformer.blocks.17", 11)
    assert len(short) == 11
    assert short.startswith("trans")
    assert short.endswith("ks.17")
