"""One subject on several targets."""

from __future__ import annotations

from pathlib import Path

from portwright.graph.plans.request import PlanOptions, Request, parse_targets
from portwright.planning.subject import load_subject
from portwright.planning.torch_plan import plan_subject

NET = """
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, x):
        x = self.mix(x).unsqueeze(1)
        return F.scaled_dot_product_attention(x, x, x).square().mean()
"""


def test_the_scores_of_attention_are_held_only_where_it_is_not_fused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    subject = load_subject(Request(f"{tmp_path / 'net.py'}:Net", inputs=("x:float32[2,512,16]",)))
    plans = plan_subject(subject, PlanOptions(parse_targets("cpu,csx"))).plans
    scores = 2 * 512 * 512 * 2  # in half precision
    assert plans["cpu"].as_json()["memory_bytes"]["activations"] < scores
    assert plans["csx"].as_json()["memory_bytes"]["activations"] > scores
