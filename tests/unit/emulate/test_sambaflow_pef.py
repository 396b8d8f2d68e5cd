"""A PEF says what it was compiled for, and is refused for anything else, by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from unit.emulate.sambaflow_case import Case, Classifier, adamw, sgd, start_again

from portwright.emulate.sambaflow import samba
from portwright.emulate.sambaflow._pef import Pef
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.samba.utils.pef_utils import PefInfoStruct, get_pef_info, get_pefmeta_dict
from portwright.errors import PortwrightError

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch, when mkldnn is switched off


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    start_again()
    yield
    start_again()


def test_it_lies_where_the_vendor_puts_it_and_is_labelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pef = Case(tmp_path, config={"pef_name": "lenet"}).compile()
    assert Path(pef) == tmp_path / "lenet" / "lenet.pef"
    document = json.loads(Path(pef).read_text())
    assert document["emulated"] == "SambaFlow"
    assert "no RDU can run it" in document["format"]
    monkeypatch.chdir(tmp_path)
    case = Case(tmp_path)
    del case.config["output_folder"]
    assert case.compile() == "out/case/case.pef"


class _Tanh(Classifier):
    def forward(self, image: Tensor, label: Tensor) -> Any:
        logits = self.last(torch.relu(self.first(image)).abs())
        return self.criterion(logits, label), logits


OTHERS: list[tuple[Callable[[Path], Case], str]] = [
    (lambda path: Case(path, lambda: Classifier(hidden=32)), r"'first.weight' is float32\[32, 8\], compiled for float32\[16, 8\]"),
    (lambda path: Case(path, batch=4), r"'image' is float32\[4, 8\], compiled for float32\[6, 8\]"),
    (lambda path: Case(path, optimizer=adamw), "the optimizer is AdamW, compiled for SGD"),
    (lambda path: Case(path, optimizer=None), "the optimizer is none, compiled for SGD"),
    (lambda path: Case(path, optimizer=lambda m: [sgd(m.first), sgd(m.last)]), "SGD, SGD, compiled for SGD"),
    (lambda path: Case(path, optimizer=lambda m: sgd(m.first)), r"trains 2 weight\(s\), compiled for 4"),
    (lambda path: Case(path, lambda: Classifier().bfloat16()), "'first.weight' is bfloat16"),
    (lambda path: Case(path, lambda: Classifier(dropout=0.5)), "the model computes"),
    (lambda path: Case(path, _Tanh), "the model computes"),
]  # fmt: skip


@pytest.mark.parametrize(("other", "said"), OTHERS)
def test_another_model_batch_type_or_optimizer_is_refused(
    other: Callable[[Path], Case], said: str, tmp_path: Path
) -> None:
    pef = Case(tmp_path).compile()
    case = other(tmp_path)
    with pytest.raises(SambaFlowError, match=said):
        case.trace(pef)


def test_static_settings_of_an_optimizer_are_part_of_it(tmp_path: Path) -> None:
    pef = Case(tmp_path, optimizer=lambda m: adamw(m, betas=(0.9, 0.99))).compile()
    with pytest.raises(SambaFlowError, match=r"betas=\[0.9, 0.997\], compiled for \[0.9, 0.99\]"):
        Case(tmp_path, optimizer=adamw).trace(pef)
    Case(tmp_path, optimizer=lambda m: adamw(m, betas=(0.9, 0.99), lr=3.0)).trace(pef)  # lr is no part


def test_another_input_name_is_refused(tmp_path: Path) -> None:
    pef = Case(tmp_path).compile()
    case = Case(tmp_path)
    case.inputs = (samba.from_torch_tensor(samba.to_torch(case.inputs[0]), name="picture"), case.inputs[1])
    with pytest.raises(SambaFlowError, match=r"'picture' was not compiled for; the input 'image'.*missing"):
        case.trace(pef)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no PEF of this emulator"),
        (b"\x7fELF\x02\x01" + bytes(range(256)), "is no PEF of this emulator.*A real PEF runs on an RDU"),
        (b'{"format": "other"}', "is no PEF"),
        (b"[1, 2]", "is no PEF"),
        (b"[" * 100_000, "is no PEF"),
        (None, "does not exist"),
    ],
)
def test_what_is_no_pef_is_told(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "ü some.pef"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SambaFlowError, match=said):
        Case(tmp_path).trace(str(path))
    with pytest.raises(SambaFlowError, match="is a folder"):
        Case(tmp_path).trace(str(tmp_path))


def test_a_changed_pef_is_damaged(tmp_path: Path) -> None:
    pef = Path(Case(tmp_path).compile())
    pef.write_text(pef.read_text().replace("sn30", "sn10"))
    with pytest.raises(SambaFlowError, match="checksum"):
        Case(tmp_path).trace(str(pef))


def test_it_reads_back_as_it_was_written(tmp_path: Path) -> None:
    read = Pef.read(Path(Case(tmp_path, optimizer=adamw).compile()))
    read.write(tmp_path / "again.pef")
    assert Pef.read(tmp_path / "again.pef") == read
    assert read.differences(read) == []


def test_metadata_come_back_and_hold_whatever_a_script_has(tmp_path: Path) -> None:
    case = Case(tmp_path)
    pef = case.compile(
        pef_metadata=get_pefmeta_dict({"lr": 0.1, "path": tmp_path, "dtype": torch.float32}, case.model)
    )
    assert get_pef_info(pef, {"lr": PefInfoStruct(0)}) == {"lr": 0.1}
    assert get_pef_info(pef, {"path": PefInfoStruct()}) == {"path": str(tmp_path)}
    with pytest.raises(ValueError, match="has no other"):
        get_pef_info(pef, {"other": PefInfoStruct()})


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PortwrightError, match="file"):
        Case(tmp_path, config={"output_folder": str(tmp_path / "file")}).compile()
