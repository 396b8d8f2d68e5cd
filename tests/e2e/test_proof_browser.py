"""The page of a proof in a real browser: quiet, offline, and nothing wider than the window."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from chromium import NAMES, Chromium, find_chromium

from portwright.verify.api import make_proof
from portwright.verify.judge import judge
from portwright.verify.proof_page import write_page

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "verify"))
from made_recordings import Made, make

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason=f"no browser ({', '.join(NAMES)}); Debian: apt-get install chromium"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    cases = {
        "equal": {"original": make(20), "ported": make(20)},
        "different": {
            "original": make(20),
            "ported": make(20, factor=1.01),
            "original_noise": make(20, noise=1e-6),
        },
    }
    made = {}
    for name, recordings in cases.items():
        runs = Made(folder, **recordings)
        proof = make_proof(runs, judge(runs), folder)
        proof.commands["ported"] = "train.py --data /" + "a_very_long_folder_name/" * 30
        made[name] = folder / f"{name}.html"
        write_page(proof, made[name])
    return made


@pytest.mark.parametrize("name", ["equal", "different"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_quiet_and_fits(pages: dict[str, Path], name: str, scheme: str, tmp_path: Path) -> None:
    assert PROGRAM is not None
    browser = Chromium(PROGRAM, tmp_path)
    try:
        for width in (390, 1280, 2560):
            browser.open(pages[name], width, scheme)
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.complaints == []
            assert [url for url in browser.requests if not url.startswith("file:")] == []
            drawn = browser.run("document.querySelectorAll('polyline.original, polyline.ported').length")
            assert drawn == 2
            wide = "[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 100)"
            assert browser.run(wide) is True
            cells = "[...document.querySelectorAll('td, th')].filter(c => c.textContent.trim() && c.getClientRects().length)"
            assert browser.run(f"{cells}.every(c => c.getBoundingClientRect().width > 45)"), "a letter a line"
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 27)")
    finally:
        browser.close()
