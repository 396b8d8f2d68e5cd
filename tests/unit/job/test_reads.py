"""-D of a key that nothing reads is an error that lists the keys that are read; where that cannot be known, nothing is said."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.job.params import load_params
from portwright.job.reads import check_overrides

HEAD = "from portwright import PyTorchBaseModel\nfrom somewhere import Library\n"
MODEL = """
class Net(PyTorchBaseModel):
    def __init__(self, params):
        self.size = {}
        super().__init__(params=params, model=None)
"""
DATA = "\ndef data(params):\n    {}\n"
PLAIN = (MODEL.format('params["model"]["size"]'), DATA.format('return params["train_input"].get("batch", 3)'))
ONE = '\ndef {}(params):\n    own = params["{}"]\n    return own["batch"]\n'
TWO = "a(params), b(params)"
CASES = {
    # name: (model, data, override, words of the error or none)
    "read": (*PLAIN, "train_input.batch=2", ""),
    "unread": (*PLAIN, "train_input.batches=2", "Did you mean 'batch'? Valid: batch."),
    "of another section": (*PLAIN, "model.batch=2", "Valid: allow_multireplica, fp16_type, mixed_precision, size, to_float16."),
    "of none": (*PLAIN, "eval_input.batch=2", "No key of eval_input is read."),
    "ours": (*PLAIN, "model.mixed_precision=true", ""),
    "set by default alone": (PLAIN[0], DATA.format('params["train_input"].setdefault("batch", 3)'), "train_input.batch=2", "No key"),
    "by a name": (PLAIN[0], DATA.format('own = params["train_input"]\n    return own["batch"]'), "train_input.batch=2", ""),
    "by a name, unread": (PLAIN[0], DATA.format('own = params["train_input"]\n    return own["batch"]'), "train_input.b=2", "Valid: batch."),
    "by one name of two": (PLAIN[0], DATA.format(f"return {TWO}") + ONE.format("a", "train_input") + ONE.format("b", "eval_input"), "train_input.batch=2", ""),
    "by one name of two, unread": (PLAIN[0], DATA.format(f"return {TWO}") + ONE.format("a", "train_input") + ONE.format("b", "eval_input"), "train_input.b=2", "Valid: batch."),
    "in": (PLAIN[0], DATA.format('return "batch" in params["train_input"]'), "train_input.batch=2", ""),
    "spread": (PLAIN[0], DATA.format('return Library(**params["train_input"])'), "train_input.b=2", ""),
    "given on": (PLAIN[0], DATA.format('return Library(params["train_input"])'), "train_input.b=2", ""),
    "params given on": (PLAIN[0], DATA.format("return Library(params)"), "train_input.b=2", ""),
    "params given to a function of ours": (PLAIN[0], DATA.format("return more(params)\ndef more(p):\n    return 1"), "train_input.b=2", "No key"),
    "asked for by a variable": (PLAIN[0], DATA.format('return [params["train_input"][k] for k in ("a", "b")]'), "train_input.b=2", ""),
    "gone over": (PLAIN[0], DATA.format('return list(params["train_input"].values())'), "train_input.b=2", ""),
    "a base of a library": (PLAIN[0].replace("(PyTorchBaseModel)", "(Library)"), PLAIN[1], "model.b=2", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_override_that_nothing_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, override, words = CASES[name]
    module_name = f"reads_{[*CASES].index(name)}"
    (tmp_path / f"{module_name}.py").write_text(HEAD + model + data)
    monkeypatch.syspath_prepend(str(tmp_path))
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "somewhere.py").write_text("class Library:\n    pass\n")
    monkeypatch.syspath_prepend(str(library))
    (tmp_path / "params.yaml").write_text(
        "train_input: {}\nmodel: {size: 1}\noptimizer: {learning_rate: 1.0}\n"
    )
    module: Any = importlib.import_module(module_name)
    params = load_params(tmp_path / "params.yaml", overrides=[override])
    if not words:
        check_overrides(params, (module.Net, module.data, None), tmp_path)
        return
    with pytest.raises(UserError) as caught:
        check_overrides(params, (module.Net, module.data, None), tmp_path)
    assert f"nothing reads the key '{override.partition('=')[0].partition('.')[2]}'" in str(caught.value)
    assert words in caught.value.cure
