from __future__ import annotations

import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from portwright.discover import find_rules
from portwright.errors import UserError
from portwright.port.api import PortResult, check, port
from portwright.port.check import Selection
from portwright.port.entries import CheckResult
from portwright.port.finding import Finding
from portwright.port.report import manual_minutes, port_report, summarise_port, summary
from portwright.port.report_formats import render, write_report

RULES = list(find_rules().values())


def finding(**changes: object) -> Finding:
    values: dict[str, object] = {
        "code": "PW201", "path": "a b/train.py", "line": 3, "column": 7, "message": "x < y & 'z'", "cure": "Do <it>.",
        "safety": "manual", "targets": ("csx", "ipu"),
    }  # fmt: skip
    return Finding(**{**values, **changes})  # type: ignore[arg-type]


def made(findings: list[Finding]) -> CheckResult:
    return CheckResult(findings, Selection(tuple(RULES), frozenset({"csx", "ipu"})), [], [])


FINDINGS = [finding(), finding(line=9, code="PW502", safety="safe"), finding(path="z.py", code="PW001")]


def test_text() -> None:
    lines = render(made(FINDINGS), "text").splitlines()
    assert lines[:2] == ["a b/train.py:3:7: PW201 x < y & 'z'", "    Do <it>."]
    assert lines[3] == "    Do <it>. [safe rewrite]"
    assert lines[-1] == "3 findings in 2 files: 1 safe, 2 manual."
    assert render(made([]), "text") == "No findings.\n"


def test_minutes_count_what_a_person_has_to_do() -> None:
    assert manual_minutes([finding(code="PW502", safety="safe")]) == 0
    assert manual_minutes([finding(), finding(code="PW401")]) == 70
    assert "1 finding in 1 file:" in summary(made([finding()]))


def test_json_is_the_documented_form() -> None:
    document = json.loads(render(made(FINDINGS), "json"))
    assert list(document) == ["findings", "entries", "summary"]
    assert document["summary"] == {"findings": 3, "files": 2, "safe": 1, "unsafe": 0, "manual": 2}
    assert document["findings"][0] == {
        "code": "PW201", "path": "a b/train.py", "line": 3, "column": 7, "message": "x < y & 'z'", "cure": "Do <it>.",
        "safety": "manual", "targets": ["csx", "ipu"],
    }  # fmt: skip
    assert Finding.from_dict(document["findings"][0]) == FINDINGS[0]


def check_sarif(document: dict[str, Any]) -> dict[str, Any]:
    """What the standard requires of the parts that we write, and its one run."""
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("sarif-2.1.0.json")
    (run,) = document["runs"]
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    for base in run["originalUriBaseIds"].values():
        assert base["uri"].startswith("file:///")
        assert base["uri"].endswith("/")
    driver = run["tool"]["driver"]
    assert driver["name"] == "portwright"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule.get("help", {"text": "x"})["text"]
        assert rule.get("defaultConfiguration", {"level": "error"})["level"] in LEVELS
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in LEVELS
        assert result["message"]["text"]
        for location in result["locations"]:
            place = location["physicalLocation"]
            check_location(place["artifactLocation"], run)
            check_region(place.get("region", {"startLine": 1}))
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        for fix in result.get("fixes", []):
            assert fix["description"]["text"]
            for change in fix["artifactChanges"]:
                check_location(change["artifactLocation"], run)
                assert change["replacements"]
                for replacement in change["replacements"]:
                    check_region(replacement["deletedRegion"])
                    assert set(replacement) <= {"deletedRegion", "insertedContent"}
    prints = [result["partialFingerprints"]["portwrightFinding/v1"] for result in run["results"]]
    assert len(prints) == len(set(prints))
    return dict(run)


LEVELS = ("none", "note", "warning", "error")


def check_location(location: dict[str, Any], run: dict[str, Any]) -> None:
    uri = location["uri"]
    assert re.fullmatch(r"[A-Za-z0-9_.~/%!$&'()*+,;=@:-]+", uri), uri
    if "uriBaseId" in location:
        assert location["uriBaseId"] in run["originalUriBaseIds"]
        assert not uri.startswith("/")
        assert ":" not in uri.partition("/")[0]
    else:
        assert uri.startswith("file:///")


def check_region(region: dict[str, Any]) -> None:
    assert all(isinstance(number, int) and number >= 1 for number in region.values())
    start = (region["startLine"], region.get("startColumn", 1))
    end = (region.get("endLine", region["startLine"]), region.get("endColumn", 10**9))
    assert start <= end


def test_sarif_has_what_the_standard_requires() -> None:
    run = check_sarif(json.loads(render(made(FINDINGS), "sarif")))
    assert len(run["results"]) == len(FINDINGS)
    for result, expected in zip(run["results"], FINDINGS, strict=True):
        assert result["ruleId"] == expected.code
        place = result["locations"][0]["physicalLocation"]
        assert place["region"] == {"startLine": expected.line, "startColumn": expected.column}
    assert (
        run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/train.py"
    )
    assert json.loads(render(made([]), "sarif"))["runs"][0]["results"] == []


@pytest.mark.parametrize("name", ["c:x.py", "ü ñ.py", "#?%.py", "a\udcff.py", "/abs olute/x.py"])
def test_sarif_writes_any_name_as_a_uri(name: str) -> None:
    text = render(made([finding(path=name)]), "sarif")
    check_sarif(json.loads(text))


SCRIPT = "# é\nimport torch\n\n\ndevice = torch.device('cuda')\nx = 'ü'; y = torch.zeros(3).cuda()\nz = torch.zeros(3).cuda()\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_sarif_fixes_are_the_edits_of_a_port(newline: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(SCRIPT.replace("\n", newline).encode())
    result = check([path], ["csx"], use_cache=False)
    run = check_sarif(json.loads(render(result, "sarif")))
    lines = path.read_bytes().decode().split(newline)
    assert sum("fixes" in result for result in run["results"]) >= 2
    for result in run["results"]:
        for fix in result.get("fixes", []):
            text = apply(lines, fix["artifactChanges"][0]["replacements"])
            ast.parse(newline.join(text))
            assert text != lines
    whole = [
        r
        for result in run["results"]
        for f in result["fixes"]
        for r in f["artifactChanges"][0]["replacements"]
    ]
    ported = port([path], ["csx"], out=tmp_path / "out")
    assert ported.left == []
    assert newline.join(apply(lines, whole)).encode() == (tmp_path / "out" / "train.py").read_bytes()


def test_a_fix_brings_the_import_that_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return torch.triu(x)\n"
    )
    result = check([path], ["csx"], use_cache=False)
    (found,) = check_sarif(json.loads(render(result, "sarif")))["results"]
    (fix,) = found["fixes"]
    replacements = fix["artifactChanges"][0]["replacements"]
    text = "\n".join(apply(path.read_text().splitlines(), replacements))
    assert text.startswith("import torch\nfrom portwright.")
    assert render(result, "html")


def apply(lines: list[str], replacements: list[dict[str, Any]]) -> list[str]:
    """As a code-review tool does it: by lines and columns, from the end."""
    text = list(lines)
    for each in sorted(
        replacements,
        key=lambda r: -r["deletedRegion"]["startLine"] * 10**6 - r["deletedRegion"]["startColumn"],
    ):
        region, new = each["deletedRegion"], each.get("insertedContent", {"text": ""})["text"]
        first, last = region["startLine"] - 1, region["endLine"] - 1
        tail = text[last][region["endColumn"] - 1 :] if last < len(text) else ""
        text[first : last + 1] = [text[first][: region["startColumn"] - 1] + new + tail]
    return text


def test_fingerprints_stay_when_lines_move(tmp_path: Path) -> None:
    path = tmp_path / "train.py"

    def prints(text: str) -> list[str]:
        path.write_text(text)
        result = check([path], ["csx"], use_cache=False)
        results = json.loads(render(result, "sarif"))["runs"][0]["results"]
        return [result["partialFingerprints"]["portwrightFinding/v1"] for result in results]

    before = prints(SCRIPT)
    assert prints("\n\n" + SCRIPT) == before
    assert prints(SCRIPT.replace("z = ", "w = "))[:2] == before[:2]
    assert prints(SCRIPT.replace("z = ", "w = ")) != before


def test_sarif_of_a_notebook_has_cells_and_no_lines_of_the_file(tmp_path: Path) -> None:
    cell = {
        "cell_type": "code",
        "source": ["import torch\n", "x = torch.zeros(3).cuda()"],
        "metadata": {},
        "outputs": [],
    }
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [cell, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    result = check([path], ["csx"], use_cache=False)
    run = check_sarif(json.loads(render(result, "sarif")))
    assert len(run["results"]) == 2
    for result in run["results"]:
        assert "region" not in result["locations"][0]["physicalLocation"]
        assert "line 2" in result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href") and v]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_whole_in_one_file() -> None:
    parser = Tags()
    parser.feed(render(made(FINDINGS), "html"))
    assert parser.open == []
    assert parser.links == []
    assert "x < y & 'z'" in parser.text
    assert "Do <it>." in parser.text
    Tags().feed(render(made([]), "html"))


def test_html_says_the_summary_first_and_shows_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nx = torch.zeros(3).cuda()  # <b>&\nloss.backward()\n")
    result = check([path], use_cache=False)
    text = render(result, "html")
    assert text.index("needs a person") < text.index("1 files looked at") < text.index("<article")
    assert "<pre>x = torch.zeros(3).cuda()  # &lt;b&gt;&amp;</pre>" in text
    for word in ("csx", "ipu", "rdu"):
        assert f"<tr><td>{word}</td>" in text
        assert f'<option value="{word}">' in text


def test_port_says_the_share_and_the_minutes() -> None:
    done = PortResult(["a.py"], [FINDINGS[1]], [FINDINGS[0]], "", [], [])
    assert summarise_port(done) == {
        "findings": 2, "fixed": 1, "left": 1, "share_fixed_automatically": 50, "manual_minutes": 10,
    }  # fmt: skip
    last = port_report(done, wrote=True).splitlines()[-1]
    assert last == (
        "changed 1 file: 1 of 2 findings fixed automatically (50 %), 1 left; manual work left: about 10 minutes."
    )


def test_unknown_format_and_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'sarif'"):
        render(made([]), "sariff")
    write_report(made(FINDINGS), "json", tmp_path / "sub" / "x.json")
    assert json.loads((tmp_path / "sub" / "x.json").read_text())["findings"]
