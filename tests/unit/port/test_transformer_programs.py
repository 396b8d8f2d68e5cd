"""Random programs around nn.Transformer and its parts: ported by PW340, they compute what they computed."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from portwright import layers
from portwright.discover import find_rules
from portwright.port.check import Selection
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.source import Source

# How a program names torch's classes; `{}` is the class.
IMPORTS = {
    "import torch\nfrom torch import nn": "nn.{}",
    "import torch\nimport torch.nn as layers\nfrom torch import nn": "layers.{}",
    "import torch\nfrom torch import nn\nfrom torch.nn import *": "{}",
    "import torch\nfrom torch import nn\nlayers = 1": "torch.nn.{}",
}
ACTIVATIONS = ('"relu"', '"gelu"', "torch.nn.functional.gelu", "nn.GELU()", "nn.PReLU()", "torch.tanh")


def layer_text(draw: random.Random, kind: str, form: str, batch_first: bool) -> str:
    """A call that makes a layer of width 8, its arguments in order or by name."""
    # With the batch first dropout draws other elements than torch's, from the same distribution.
    dropout = 0.0 if batch_first else draw.choice((0.0, 0.3))
    if kind == "MultiheadAttention":
        options = ("", "", ", add_bias_kv=True", ", add_zero_attn=True", ", bias=False", ", kdim=8, vdim=8")
        return f"{form.format(kind)}(8, 2, {dropout}{draw.choice(options)}, batch_first={batch_first})"
    norm_first, activation = draw.random() < 0.4, draw.choice(ACTIVATIONS)
    places = f"12, {dropout}, {activation}, 1e-5, {batch_first}, {norm_first}, {draw.random() < 0.8}"
    names = f"dim_feedforward=12, dropout={dropout}, activation={activation}, batch_first={batch_first}, norm_first={norm_first}"
    if kind == "Transformer":
        return f"{form.format(kind)}(8, 2, 1, 2, {names})"
    return f"{form.format(kind)}(8, 2, {draw.choice((places, names))})"


def program(seed: int) -> tuple[str, dict[str, Any]]:
    """A module with one kind of layer, and what its forward() is to be given."""
    draw = random.Random(seed)
    head, form = draw.choice(list(IMPORTS.items()))
    kind = draw.choice(
        ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer", "TransformerEncoder",
         "TransformerDecoder", "Transformer", "Subclass")
    )  # fmt: skip
    batch_first, batched = draw.random() < 0.5, draw.random() < 0.8
    base, made = "nn.Module", ""
    if kind == "Subclass":
        base, own = form.format("Transformer"), "(8, 2, 2, 1, 12, 0.0, batch_first=True)"
        made = draw.choice((f"super().__init__{own}", f"{base}.__init__(self, {own[1:]}"))
        batch_first, call = (
            True,
            draw.choice(("super().forward(x, y, **masks)", f"{base}.forward(self, x, y, **masks)")),
        )
    else:
        made, call = "super().__init__()\n        self.part = ", "self.part(x, y, **masks)"
        if kind in ("TransformerEncoder", "TransformerDecoder"):
            norm = draw.choice(("", ", nn.LayerNorm(8)", ", norm=None"))
            made += f"{form.format(kind)}({layer_text(draw, kind + 'Layer', form, batch_first)}, 2{norm})"
        else:
            made += layer_text(draw, kind, form, batch_first)
        if "Encoder" in kind:
            call = "self.part(x, **masks)"
        elif kind == "MultiheadAttention":
            call = draw.choice(("self.part(x, x, x, **masks)", "self.part(query=x, key=y, value=y, **masks)"))
    text = f"{head}\n\n\nclass Net({base}):\n    def __init__(self):\n        {made}\n"
    text += (
        f"        self.head = nn.Linear(8, 3)\n\n    def forward(self, x, y, masks):\n        out = {call}\n"
    )
    text += "        if isinstance(out, tuple):\n            return [self.head(out[0]), out[1]]\n        return [self.head(out)]\n"
    return text, inputs_for(draw, kind, call, batch_first, batched)


def inputs_for(draw: random.Random, kind: str, call: str, batch_first: bool, batched: bool) -> dict[str, Any]:
    rows, length, of_y = 3, 5, draw.choice((5, 4))
    generator = torch.Generator().manual_seed(draw.randrange(1000))

    def random_input(length: int) -> Tensor:
        shape = ((rows, length, 8) if batch_first else (length, rows, 8)) if batched else (length, 8)
        return torch.randn(shape, generator=generator)

    def mask(queries: int, keys: int) -> Tensor:
        hidden = torch.rand(queries, keys, generator=generator) < 0.4
        hidden[:, 0] = False
        as_float = torch.zeros(queries, keys).masked_fill(hidden, float("-inf"))
        return draw.choice((hidden, as_float))

    def padding(length: int) -> Tensor:
        hidden = torch.arange(length).expand(rows, length) >= torch.tensor([[length], [3], [2]])
        hidden = hidden if batched else hidden[1]
        return hidden if draw.random() < 0.7 else hidden.float() * -1e9

    sizes = {"src": length, "tgt": length, "memory": of_y}
    if kind == "MultiheadAttention":
        keys = of_y if "key=y" in call else length
        masks = {
            "attn_mask": mask(length, keys), "key_padding_mask": padding(keys),
            "need_weights": draw.random() < 0.5, "average_attn_weights": draw.random() < 0.5,
        }  # fmt: skip
    elif kind == "TransformerEncoder":
        masks = {"mask": mask(length, length), "src_key_padding_mask": padding(length)}
    elif kind == "TransformerEncoderLayer":
        masks = {"src_mask": mask(length, length), "src_key_padding_mask": padding(length)}
    else:
        whole = kind in ("Transformer", "Subclass")
        sizes = {"src": length, "tgt": of_y, "memory": length} if whole else sizes
        masks = {
            "tgt_mask": mask(sizes["tgt"], sizes["tgt"]), "memory_mask": mask(sizes["tgt"], sizes["memory"]),
            "tgt_key_padding_mask": padding(sizes["tgt"]),
            "memory_key_padding_mask": padding(sizes["memory"]),
        }  # fmt: skip
        if whole:
            masks |= {"src_mask": mask(length, length), "src_key_padding_mask": padding(length)}
    given = {name: value for name, value in masks.items() if draw.random() < 0.5}
    return {"x": random_input(length), "y": random_input(of_y), "masks": given}


def run(text: str, given: dict[str, Any], weights: dict[str, Tensor] | None) -> dict[str, Any]:
    """First weights, outputs and gradients of a training step with dropout, outputs in evaluation."""
    names: dict[str, Any] = {}
    exec(compile(text, "program.py", "exec"), names)
    torch.manual_seed(5)
    net: nn.Module = names["Net"]()
    made = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    if weights is not None:
        net.load_state_dict(weights)
    x = given["x"].clone().requires_grad_()
    outputs = net(x, given["y"], given["masks"])
    sum(part.square().sum() for part in outputs if part is not None).backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
    net.eval()
    with torch.no_grad():
        evaluated = net(given["x"], given["y"], given["masks"])
    return {
        "weights": made, "outputs": outputs, "gradients": {**gradients, "x": x.grad}, "evaluated": evaluated,
        "with gradients": net(given["x"], given["y"], given["masks"]),
    }  # fmt: skip


def ported(text: str, folder: Path) -> str:
    rule = next(r for r in find_rules().values() if r.code == "PW340")
    source = Source(folder / "program.py", text.encode())
    return make_patch(source, Project(folder), Selection((rule,), frozenset({"csx"})), ("safe",)).after.text


def check_program(seed: int, folder: Path) -> None:
    text, given = program(seed)
    after = ported(text, folder)
    assert "from portwright" in after, text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about masks of two types and nested tensors
        expected = run(text, given, None)
        got = run(after, given, expected["weights"])
    assert list(got["weights"]) == list(expected["weights"]), text
    for part, value in expected["weights"].items():
        assert torch.equal(got["weights"][part], value), (part, text)
    for kind in ("outputs", "gradients", "evaluated", "with gradients"):
        torch.testing.assert_close(
            got[kind], expected[kind], rtol=2e-5, atol=2e-5, equal_nan=True, msg=lambda m, k=kind: f"{k}: {m}\n{text}"
        )  # fmt: skip


@pytest.mark.parametrize("block", range(4))
def test_ported_programs_compute_what_they_computed(block: int, tmp_path: Path) -> None:
    for seed in range(25 * block, 25 * block + 25):
        check_program(seed, tmp_path)


def test_float_masks_are_added_in_evaluation_as_in_training() -> None:
    theirs = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True).eval()
    ours = layers.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True).eval()
    ours.load_state_dict(theirs.state_dict())
    x, mask = torch.linspace(-1, 1, 64).sin().view(2, 4, 8), 0.5 * torch.eye(4)
    with torch.no_grad():
        misread, got = theirs(x, mask), ours(x, mask)
    torch.testing.assert_close(got, theirs(x, mask))
    assert not torch.allclose(misread, got, atol=1e-2)  # else the page need not say it
