"""Draws docs/images/cosmictagger.png from a run of the reference model: its learning curves, and an event it never saw.

python benchmarks/cosmictagger_picture.py MODEL_DIR PICTURE; MODEL_DIR is what `run.py CPU --mode train_and_eval` left. Needs
matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import yaml
from safetensors.torch import load_file

matplotlib.use("Agg")
from matplotlib import pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from unit.models.cosmic_folder import load

COLOURS = np.array([[255, 255, 255], [86, 180, 233], [213, 94, 0]], np.uint8)  # background, cosmic, neutrino
EVENT = 7


def read_log(model_dir: Path) -> tuple[list[float], dict[int, dict[str, float]]]:
    """The loss of every step, and the metrics of every evaluation."""
    losses: list[float] = []
    evaluations: dict[int, dict[str, float]] = {}
    for line in (model_dir / "train" / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "train":
            losses += entry["losses"]
        else:
            evaluations[entry["step"]] = entry["values"]
    return losses, evaluations


def all_background(dataset: Any) -> float:
    """The mean IoU of saying that nothing is anything."""
    metric = load("plane_metrics").PlaneMetric("mean_iou")
    for index in range(len(dataset)):
        labels = dataset[index]["label"]
        metric(labels=labels, predictions=torch.zeros_like(labels))
    return float(metric.compute())


def main() -> None:
    model_dir, picture = Path(sys.argv[1]), Path(sys.argv[2])
    params = yaml.safe_load((model_dir / "train" / "params_train.yaml").read_text())
    params = load("utils").set_defaults(params)
    losses, evaluations = read_log(model_dir)
    network = load("uresnet").UResNet(load("uresnet_blocks").NetworkOptions(**params["model"]))
    newest = max(model_dir.glob("checkpoint_*"), key=lambda path: int(path.name.split("_")[1]))
    network.load_state_dict(load_file(newest / "model.safetensors"))
    dataset = load("data").make_dataset(params, "eval_input")
    event = dataset[EVENT]
    with torch.no_grad():
        predictions = network.eval()(event["image"][None]).argmax(1)
    baseline = all_background(dataset)

    figure = plt.figure(figsize=(12, 8), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1, 1.5])
    left, right = upper.subplots(1, 2)
    left.plot(range(1, len(losses) + 1), losses, color="#555555", linewidth=0.8)
    left.set(xlabel="step", ylabel="focal loss of three planes", ylim=(0, None))
    steps = sorted(evaluations)
    for name, colour, style in (
        ("cosmic_iou", "#56B4E9", "--"),
        ("neutrino_iou", "#D55E00", "--"),
        ("mean_iou", "#000000", "-"),
    ):
        values = [evaluations[step][f"eval/{name}"] for step in steps]
        right.plot(
            steps, values, style, color=colour, marker="o", markersize=4, label=name.replace("_iou", " IoU")
        )
    right.axhline(baseline, color="#999999", linestyle=":", label=f"all background: mean IoU {baseline:.3f}")
    right.set(xlabel="step", ylabel="IoU on 40 held-out events", ylim=(-0.03, 1), xlim=(0, None))
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    axes = lower.subplots(3, 3)
    for plane in range(3):
        charge = np.clip(event["image"][plane].numpy(), 0, 8)
        axes[plane][0].imshow(charge, cmap="gray_r", interpolation="nearest", aspect="auto")
        axes[plane][1].imshow(COLOURS[event["label"][plane].numpy()], interpolation="nearest", aspect="auto")
        axes[plane][2].imshow(COLOURS[predictions[plane].numpy()], interpolation="nearest", aspect="auto")
        axes[plane][0].set_ylabel(f"plane {plane}")
    for column, title in enumerate(("charge", "labels", f"predicted after {len(losses)} steps")):
        axes[0][column].set_title(title)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.savefig(picture, dpi=90)
    print(f"mean IoU {evaluations[steps[-1]]['eval/mean_iou']:.4f}, all background {baseline:.4f}")


if __name__ == "__main__":
    main()
