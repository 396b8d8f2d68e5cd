"""Sections of targets, as the generated page and the editor's schema show them."""

from __future__ import annotations

from typing import Any

import pytest
from make_docs import pages

from portwright.discover import get_target
from portwright.job.schema import json_schema
from portwright.targets.ipu.section import Block


@pytest.mark.parametrize(("target", "name"), [("IPU", "ipu"), ("RDU", "rdu")])
def test_every_key_is_on_the_page_and_in_the_schema(target: str, name: str) -> None:
    section: Any = get_target(target).sections[name]
    page = pages()["params.md"].partition(f"\n### {name} ({target})\n")[2].partition("\n### ")[0]
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    own = [*Block.model_fields] if target == "IPU" else []
    assert listed == [*section.model_fields, *own]
    schema = json_schema(None, {name: section})
    reference = schema["properties"][name]["$ref"].removeprefix("#/$defs/")
    assert set(schema["$defs"][reference]["properties"]) == set(section.model_fields)


def test_a_section_that_the_sdk_checks_has_no_table() -> None:
    page = pages()["params.md"].partition("\n### csconfig (CSX)\n")[2].partition("\n### ")[0]
    assert "SDK itself checks" in page
    assert "|" not in page
