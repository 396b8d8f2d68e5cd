"""This very portwright, as something that pip can install elsewhere without asking an index."""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path, PurePosixPath

from portwright import __version__
from portwright.errors import UserError

_NOT_PACKED = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


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
        described = importlib.metadata.distribution("portwright").files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"the portwright in {package} was not installed by pip, so it cannot be installed elsewhere.",
            "Install it with pip, or run from a checkout.",
        ) from error
    files: dict[str, Path] = {
        f"portwright/{path.relative_to(package).as_posix()}": path
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    for entry in described:
        words = PurePosixPath(entry).parts
        if len(words) > 1 and words[0].endswith(".dist-info") and words[-1] not in _NOT_PACKED:
            files["/".join((f"{name}.dist-info", *words[1:]))] = Path(str(entry.locate()))
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, path in files.items():
            archive.write(path, place)
        record = f"{name}.dist-info/RECORD"
        archive.writestr(record, "".join(f"{place},,\n" for place in [*files, record]))
    return wheel
