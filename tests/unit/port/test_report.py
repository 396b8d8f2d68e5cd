from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from portwright.discover import find_rules
from portwright.errors import UserError
from portwright.port.finding import Finding
from portwright.port.report import manual_minutes, summary
from portwright.port.report_formats import render, write_report

RULES = list(find_rules().values())


def finding(**changes: object) -> Finding:
    values: dict[str, object] = {
        "code": "PW201", "path": "a b/train.py", "line": 3, "column": 7, "message": "x < y & 'z'", "cure": "Do <it>.",
        "safety": "manual", "targets": ("csx", "ipu"),
    }  # fmt: skip
    return Finding(**{**values, **changes})  # type: ignore[arg-type]


FINDINGS = [finding(), finding(line=9, code="PW502", safety="safe"), finding(path="z.py", code="PW001")]


def test_text() -> None:
    lines = render(FINDINGS, RULES, "text").splitlines()
    assert lines[:2] == ["a b/train.py:3:7: PW201 x < y & 'z'", "    Do <it>."]
    assert lines[3] == "    Do <it>. [safe rewrite]"
    assert lines[-1].startswith("3 findings in 2 files: 1 safe, 2 manual.")
    assert "33 %" in lines[-1]
    assert render([], RULES, "text") == "No findings.\n"


def test_minutes_count_what_a_person_has_to_do() -> None:
    assert manual_minutes([finding(code="PW502", safety="safe")]) == 0
    assert manual_minutes([finding(), finding(code="PW401")]) == 70
    assert "1 finding in 1 file:" in summary([finding()])


def test_json_is_the_documented_form() -> None:
    document = json.loads(render(FINDINGS, RULES, "json"))
    assert list(document) == ["findings"]
    assert document["findings"][0] == {
        "code": "PW201", "path": "a b/train.py", "line": 3, "column": 7, "message": "x < y & 'z'", "cure": "Do <it>.",
        "safety": "manual", "targets": ["csx", "ipu"],
    }  # fmt: skip
    assert Finding.from_dict(document["findings"][0]) == FINDINGS[0]


def test_sarif_has_what_the_standard_requires() -> None:
    document = json.loads(render(FINDINGS, RULES, "sarif"))
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("sarif-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "portwright"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule.get("help", {"text": "x"})["text"]
    assert len(run["results"]) == len(FINDINGS)
    for result, expected in zip(run["results"], FINDINGS, strict=True):
        assert ids[result["ruleIndex"]] == result["ruleId"] == expected.code
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["region"] == {"startLine": expected.line, "startColumn": expected.column}
        assert place["region"]["startLine"] >= 1
        assert " " not in place["artifactLocation"]["uri"]
    assert (
        run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/train.py"
    )
    assert json.loads(render([], RULES, "sarif"))["runs"][0]["results"] == []


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href") and v]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_whole_in_one_file() -> None:
    parser = Tags()
    parser.feed(render(FINDINGS, RULES, "html"))
    assert parser.open == []
    assert parser.links == []
    assert "x < y & 'z'" in parser.text
    assert "Do <it>." in parser.text
    Tags().feed(render([], RULES, "html"))


def test_unknown_format_and_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'sarif'"):
        render([], RULES, "sariff")
    write_report(FINDINGS, RULES, "json", tmp_path / "sub" / "x.json")
    assert json.loads((tmp_path / "sub" / "x.json").read_text())["findings"]
