"""The page of a check in a real browser: quiet, offline, within its window, and filtered as asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import NAMES, Chromium, find_chromium

from portwright.port.api import check
from portwright.port.report_formats import write_report

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason=f"no browser ({', '.join(NAMES)}); Debian: apt-get install chromium"
)
SHOWN = "[...document.querySelectorAll('article')].filter(a => a.getClientRects().length).length"
SCRIPT = (
    """import torch
x = torch.zeros(3).cuda()  # </pre><script>document.title = 'broken'</script>
"""
    + "# a very long line " * 40
    + """
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    chromium = Chromium(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


def test_page(browser: Chromium, tmp_path: Path) -> None:
    for name in ("a.py", "b & c.py"):
        (tmp_path / name).write_text(SCRIPT)
    result = check([tmp_path], use_cache=False)
    findings = result.findings
    page = tmp_path / "report.html"
    write_report(result, "html", page)
    for width in (2560, 1280, 390):
        for scheme in ("light", "dark"):
            browser.open(page, width=width, scheme=scheme)
            assert browser.complaints == []
            assert browser.requests == [page.as_uri()]
            assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.title") == "portwright check"
    assert browser.run(SHOWN) == len(findings)
    asked = {"safety": "manual", "target": "ipu", "rule": findings[0].code, "words": "b & c"}
    wanted = {
        "safety": [f for f in findings if f.safety == "manual"],
        "target": [f for f in findings if "ipu" in f.targets],
        "rule": [f for f in findings if f.code == findings[0].code],
        "words": [f for f in findings if "b & c" in f.path],
    }
    for field, value in asked.items():
        browser.run(
            f"document.forms[0].{field}.value = {value!r};"
            "document.forms[0].dispatchEvent(new Event('input', {bubbles: true}))"
        )
        assert browser.run(SHOWN) == len(wanted[field]), field
        assert (
            browser.run("document.querySelector('output').textContent")
            == f"{len(wanted[field])} of {len(findings)} shown"
        )
        browser.run(
            f"document.forms[0].{field}.value = ''; document.forms[0].dispatchEvent(new Event('input', {{bubbles: true}}))"
        )
    browser.open(page, script=False)
    assert page.read_text().count("<article") == len(findings)
