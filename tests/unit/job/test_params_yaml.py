"""Files that are not what they should be, and YAML's own traps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.job.params import get_params
from portwright.job.yaml_source import read_yaml


def read(folder: Path, content: str | bytes) -> dict[Any, Any]:
    path = folder / "params.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_yaml(path).values


def error_of(folder: Path, content: str | bytes) -> str:
    with pytest.raises(UserError) as raised:
        read(folder, content)
    message = str(raised.value)
    assert "\n" not in message
    return message.removeprefix(f"{folder}{os.sep}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("-2e+3", -2000.0),
        ("1.5e3", 1500.0),
        (".5e1", 5.0),
        ("1.e-3", 0.001),
        ("1_0e2", 1000.0),
        ("1e", "1e"),
        ("e5", "e5"),
        ("1e-3x", "1e-3x"),
        ("'1e-3'", "1e-3"),
        ("0x1e5", 0x1E5),
        ("1.0e-3", 0.001),
        ("on", True),
        ("no", False),
        ("'no'", "no"),
        ("~", None),
        ("012", 10),
        (".inf", float("inf")),
        ("ünï", "ünï"),
    ],
)
def test_scalars(tmp_path: Path, text: str, value: Any) -> None:
    found = read(tmp_path, f"a: {text}\n")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "params.yaml: the file is empty."),
        ("# nothing but a comment\n", "params.yaml: the file is empty."),
        ("---\n", "params.yaml: the file is empty."),
        ("- 1\n- 2\n", "params.yaml:1: expected sections such as 'optimizer:', received a list of 2 items."),
        (
            "\njust a text\n",
            "params.yaml:2: expected sections such as 'optimizer:', received the single value 'just a text'.",
        ),
        (
            "a: 1\nb:\n\tc: 1\n",
            "params.yaml:3: a tab character, which YAML does not allow for indentation. Use spaces.",
        ),
        ("a: 1\nb: 2\na: 3\n", "params.yaml:3: the key 'a' stands twice, first at"),
        ("m:\n  a: 1\n  b: {x: 1, x: 2}\n", "params.yaml:3: the key 'x' stands twice."),
        ("1: a\n0x1: b\n", "params.yaml:2: the key '0x1' stands twice"),
        ("a: b: c\n", "params.yaml:1: not valid YAML: a ':' where none may stand."),
        (
            "a: [1, 2\nb: 3\n",
            "params.yaml:2: not valid YAML: while parsing a flow sequence (line 1): expected",
        ),
        ("a: 'open\n", "params.yaml:2: not valid YAML: while scanning a quoted scalar (line 1): found"),
        ("a: *nowhere\n", "params.yaml:1: not valid YAML: found undefined alias 'nowhere'."),
        ("a: &x [*x]\n", "params.yaml:1: an alias refers to a value that contains it."),
        (
            "a: !!python/object/apply:os.system ['true']\n",
            "the tag !!python/object/apply:os.system is not allowed",
        ),
        ("a: !!python/name:os.system\n", "params.yaml:1: the tag !!python/name:os.system is not allowed"),
        ("a: 1\nb: !mine 2\n", "params.yaml:2: the tag !mine is not allowed"),
        ("a: 1\n---\nb: 2\n", "params.yaml:2: a second document begins ('---')."),
        (
            "a: 2024-13-45\n",
            "params.yaml:1: '2024-13-45' cannot be read: month must be in 1..12. Put it in quotes",
        ),
        (
            "? [1, 2]\n: 3\n",
            "params.yaml:1: not valid YAML: while constructing a mapping (line 1): found unhashable key.",
        ),
        ("a: \x07\n", "params.yaml:1: the character '\\x07' is not allowed in YAML."),
        ("a: " + "[" * 5000 + "]" * 5000, "params.yaml: lists or mappings are nested too deeply."),
        (b"PK\x03\x04\x00\x00", "params.yaml: this is a binary file, not YAML."),
        (b"a: 1\nb: caf\xe9\n", "params.yaml:2: this is not utf-8 text: byte 0xe9. Save the file as UTF-8."),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: str | bytes, expected: str) -> None:
    assert expected in error_of(tmp_path, content)


def test_aliases_that_stand_for_too_much(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "with its aliases written out this is" in error_of(tmp_path, "\n".join(lines))


def test_merge_keys_may_be_overridden_without_being_duplicates(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b\n  <<: *a\n  x: 2\nc:\n  <<: [*b, *a]\n  y: 3\n"
    assert read(tmp_path, text)["c"] == {"x": 2, "y": 3}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    assert read(tmp_path, "a: é\n".encode(encoding)) == {"a": "é"}


def test_windows_line_ends(tmp_path: Path) -> None:
    assert read(tmp_path, "a: 1\r\nb:\r\n  c: x\r\n") == {"a": 1, "b": {"c": "x"}}


def failure(path: Path | str) -> str:
    with pytest.raises(UserError) as raised:
        get_params(path)
    return str(raised.value)


def test_a_missing_file_names_near_misses(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: 1\n")
    message = failure(tmp_path / "parms.yaml")
    assert message == f"{tmp_path / 'parms.yaml'}: no such file. Did you mean {tmp_path / 'params.yaml'}?"
    assert "params.yaml?" in failure(tmp_path / "something_else.txt")
    assert "There is no folder" in failure(tmp_path / "confgs" / "params.yaml")


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: 1\n")
    assert failure(tmp_path) == f"{tmp_path}: this is a folder, not a file. Give a file in it: params.yaml."


def test_a_file_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: 1\n")
    assert "cannot be read" in failure(tmp_path / "params.yaml" / "params.yaml")


def test_an_impossible_name() -> None:
    assert "cannot be read" in failure("a\0b")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("a: 1\n")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read anything, so what others get is brought about by hand

        def refuse(self: Path) -> bytes:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "read_bytes", refuse)
    assert failure(path) == f"{path}: no permission to read this file. Try: chmod u+r {path}"
