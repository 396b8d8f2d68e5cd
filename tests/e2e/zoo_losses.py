"""A script for test_compat_modelzoo: losses of one of the zoo's models over 20 steps, with its own code or with ours lent.

python zoo_losses.py RELEASE {gpt2,layers_api_demo} {theirs,ours} FILE: theirs writes weights, batches and losses to
FILE; ours reads them and adds its own losses.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

STEPS = 20


def gpt2() -> tuple[Any, dict[str, Any], list[dict[str, torch.Tensor]]]:
    from modelzoo.transformers.pytorch.gpt2.model import Gpt2Model

    options = {
        "vocab_size": 50, "hidden_size": 16, "position_embedding_type": "learned", "max_position_embeddings": 16,
        "num_hidden_layers": 2, "dropout_rate": 0.0, "num_heads": 2, "attention_type": "scaled_dot_product",
        "attention_dropout_rate": 0.0, "filter_size": 32, "loss_weight": 0.1, "mixed_precision": False,
    }  # fmt: skip
    batches = [
        {
            "input_ids": torch.randint(50, (4, 16)),
            "attention_mask": (torch.rand(4, 16) > 0.2).int(),
            "labels": torch.randint(50, (4, 16)),
        }
        for _ in range(STEPS)
    ]
    return Gpt2Model, options, batches


def layers_api_demo() -> tuple[Any, dict[str, Any], list[dict[str, torch.Tensor]]]:
    from modelzoo.transformers.pytorch.layers_api_demo.model import TransformerBaseModel

    options = {
        "vocab_size": 26, "embedding_size": 64, "num_heads": 2, "hidden_size": 64, "num_hidden_layers": 2,
        "dropout": 0.0, "seq_len": 10, "nonlinearity": "gelu", "mixed_precision": False,
    }  # fmt: skip
    slices = [torch.randint(16, (8, 1)) + torch.arange(11) for _ in range(STEPS)]
    batches = [
        {
            "input_ids": each[:, :-1].contiguous(),
            "target_ids": each[:, 1:].contiguous(),
            "attention_mask": torch.ones(8, 10, dtype=torch.int32),
        }
        for each in slices
    ]
    return TransformerBaseModel, options, batches


def main() -> None:
    release, kind, whose, path = sys.argv[1:]
    sys.path.append(release)
    if whose == "ours":
        from portwright.compat.lend import lend

        lend("modelzoo")
    torch.manual_seed(0)
    make, options, batches = {"gpt2": gpt2, "layers_api_demo": layers_api_demo}[kind]()
    # No weight decay: release 1.6 also decays the weights of norms.
    optimizer_options = {"optimizer_type": "Adam", "learning_rate": 1e-3, "weight_decay_rate": 0.0}
    params = {"model": options, "optimizer": optimizer_options, "runconfig": {"mode": "train", "seed": 1}}
    model = make(params, device=torch.device("cpu"))
    module = sys.modules[type(model).__mro__[1].__module__].__name__
    assert module.startswith("portwright") == (whose == "ours"), module
    file = Path(path)
    found: dict[str, Any] = {} if whose == "theirs" else torch.load(file, weights_only=True)
    if whose == "theirs":
        found = {"state": {k: v.clone() for k, v in model.model.state_dict().items()}, "batches": batches}
        optimizer = model.get_optimizer()
    else:
        model.model.load_state_dict(found["state"])
        optimizer = model._configure_optimizer(optimizer_options)
    model.train()
    losses = []
    for batch in found["batches"]:
        optimizer.zero_grad()
        loss = model(dict(batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save({**found, whose: losses}, file)


if __name__ == "__main__":
    main()
