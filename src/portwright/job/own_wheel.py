"""This very portwright, as something that pip can install elsewhere without asking an index."""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path

from portwright import __version__
from portwright.errors import UserError

_WHEEL = "Wheel-Version: 1.0\nGenerator: portwright\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def checkout_folder() -> Path | None:
    """The checkout that we run from; None for an installed portwright."""
    root = Path(__file__).parents[3]
    is_checkout = Path(__file__).parents[2].name == "src" and (root / "pyproject.toml").is_file()
    return root if is_checkout else None


def make_wheel(folder: Path) -> Path:
    """Packs the installed files of this portwright into a wheel in `folder`."""
    name = f"portwright-{__version__}"
    package = Path(__file__).parents[1]
    try:
        installed = importlib.metadata.distribution("portwright")
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"the portwright in {package} was not installed by pip, so it cannot be installed elsewhere.",
            "Install it with pip, or run from a checkout.",
        ) from error
    described = {
        "METADATA": installed.read_text("METADATA") or installed.read_text("PKG-INFO") or "",
        "WHEEL": _WHEEL,
        "entry_points.txt": installed.read_text("entry_points.txt") or "",
    }
    files: dict[str, bytes] = {
        f"portwright/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files |= {f"{name}.dist-info/{file}": text.encode() for file, text in described.items()}
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, content in files.items():
            archive.writestr(place, content)
        record = f"{name}.dist-info/RECORD"
        archive.writestr(record, "".join(f"{place},,\n" for place in [*files, record]))
    return wheel
