"""Plan documents to draw: as `portwright plan --json` prints them, made by hand so that drawing needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FABRIC = (757, 996)
HOSTILE = (
    "<script>window.pwned=1</script>",
    '"><img src="https://evil.example/x.png" onerror="window.pwned=1">',
    "'-->]]><svg onload=window.pwned=1>",
    "&lt;b&gt; &#x3c; {{7*7}} javascript:window.pwned=1",
    "层.块.嵌入🧠.ünïcödé.ॐ",
    "turned\u202eeman\u2066",
    "null\x00bell\x07esc\x1b[31m",
    "lone\ud800surrogate\udc80",
    "x" * 1000,
    "a.very.long.path." + ".".join(f"submodule_{i}" for i in range(40)),
    "",
)


def make_layer(path: str, kind: str = "Linear", **changes: Any) -> dict[str, Any]:
    layer: dict[str, Any] = {
        "path": path,
        "name": path or "(model)",
        "kind": kind,
        "repeats": None,
        "parameters": 1000,
        "flops_per_sample": {"forward": 2000, "backward": 4000},
        "share_of_work": 0.1,
        "memory_bytes": {
            "weights": 4000,
            "weight_copies": 0,
            "gradients": 4000,
            "optimizer": 8000,
            "activations": 2000,
        },
        "live_bytes": {"forward": 3000, "backward": 5000},
        "cores": None,
        "share_of_fabric": None,
        "rectangle": None,
        "stage": None,
        "refused": 0,
    }
    return {**layer, **changes}


def make_estimate(value: float, interval: Sequence[float], unit: str = "bytes") -> dict[str, Any]:
    return {
        "value": value,
        "unit": unit,
        "estimated": True,
        "formula": "sum of what it takes",
        "inputs": {"batch_size": 8, "published": {"network": "784-50-10"}},
        "interval": list(interval),
        "interval_from": "a quarter either way (assumed)",
        "sources": ["a page of the vendor's"],
        "made_by": "portwright, not the vendor's compiler",
    }


def make_refusal(**changes: Any) -> dict[str, Any]:
    refusal: dict[str, Any] = {
        "op": "aten.flip.default",
        "module": "blocks.1.mix",
        "file": None,
        "line": None,
        "reason": "The front end has no lowering of flip.",
        "cure": "Use portwright.layers.legal.flip.",
        "count": 1,
        "phase": "forward",
        "repeats": (),
    }
    return {**refusal, **changes}


def make_plan(layers: Sequence[dict[str, Any]], /, **changes: Any) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "format": 1,
        "made_by": "portwright 0.1.0, not the vendor's compiler",
        "estimated": True,
        "subject": "gpt_tiny",
        "target": "CSX",
        "machine": {"name": "CS-2 (WSE-2)", "memory_bytes": 40 * 10**9, "modes": ["layer_pipelined"]},
        "kernels": {"label": "checked by hand", "ops": {"native": 90, "decomposed": 5, "free": 20}},
        "supported": True,
        "refused": [],
        "legalise": None,
        "parameters": sum(layer["parameters"] for layer in layers),
        "trained_parameters": 1000,
        "batch_size": 8,
        "trains": True,
        "optimizer": "AdamW",
        "inputs": [{"name": "0", "dtype": "float32", "shape": [8, 784]}],
        "flops_per_sample": 60000,
        "flops": {},
        "memory_bytes": {
            "weights": 40000,
            "weight_copies": 100,
            "gradients": 40000,
            "optimizer": 80000,
            "activations": 30000,
            "saved_activations": 20000,
            "inputs": 500,
            "peak": 150000,
        },
        "fits": True,
        "mode": "layer_pipelined",
        "why_mode": "they are below a billion",
        "why_fits": "all layers together take 150 kB of 37.1 GB on the chip",
        "needed_bytes": 150000,
        "capacity_bytes": 37 * 10**9,
        "execution": None,
        "largest_batch": None,
        "total_utilization": None,
        "estimated_deltat": None,
        "changes": [],
        "notes": [],
        "layers": list(layers),
        "stages": [],
        "fabric": None,
        "ops": [
            {
                "op": "aten.mm.default",
                "how": "native",
                "count": 90,
                "phases": ["backward", "forward"],
                "places": [{"file": "/work dir/model.py", "line": 3, "count": 90}],
            }
        ],
        "estimates": {
            "needed_bytes": make_estimate(150000, (120000, 190000)),
            "total_utilization": make_estimate(0.4, (0.2, 0.8), "fraction of the usable fabric"),
        },
        "info": {"torch": "2.13.0"},
    }
    return {**plan, **changes}


def placed_plan(num_blocks: int = 10, **changes: Any) -> dict[str, Any]:
    """Layers pipelined on a fabric: an embedding, alike blocks in a row, and a loss too small for a name."""
    width = FABRIC[0] // max(num_blocks, 1)
    rectangles = [{"x": i * width, "y": 100, "width": width, "height": 600} for i in range(num_blocks)]

    def on_fabric(rectangle: dict[str, int]) -> dict[str, Any]:
        cores = rectangle["width"] * rectangle["height"]
        return {
            "rectangle": rectangle,
            "cores": cores,
            "share_of_fabric": cores / (FABRIC[0] * FABRIC[1]),
        }

    layers = [
        make_layer("token", "Embedding", **on_fabric({"x": 0, "y": 0, "width": 700, "height": 100})),
        *(make_layer(f"blocks.{i}", "Block", **on_fabric(box)) for i, box in enumerate(rectangles)),
        make_layer("loss", "NLLLoss", **on_fabric({"x": 0, "y": 700, "width": 3, "height": 1})),
    ]
    return make_plan(
        layers,
        **{
            "fabric": {"columns": FABRIC[0], "rows": FABRIC[1]},
            "total_utilization": 0.4,
            "estimated_deltat": 674,
            **changes,
        },
    )


def streamed_plan(num_blocks: int = 96, **changes: Any) -> dict[str, Any]:
    layers = [make_layer(f"blocks.{i}", "Block") for i in range(num_blocks)]
    return make_plan(
        [make_layer("token", "Embedding"), *layers],
        **{"mode": "weight_streaming", "fabric": {"columns": 757, "rows": 996}, **changes},
    )


def staged_plan(**changes: Any) -> dict[str, Any]:
    layers = [make_layer(f"blocks.{i}", "Block", stage=i // 2, cores=700) for i in range(4)]
    stages = [
        {
            "index": i,
            "layers": [2 * i, 2 * i + 1],
            "memory_bytes": 500 * 10**6,
            "memory_available": 900 * 10**6,
            "cores": 800,
            "cores_available": 1472,
            "cores_of": [700, 700],
            "share_of_work": 0.5,
            "in_flight": 3 - 2 * i,
        }
        for i in range(2)
    ]
    return make_plan(layers, **{"target": "IPU", "stages": stages, **changes})


def refusing_plan(file: str | None = None, line: int | None = None, **changes: Any) -> dict[str, Any]:
    refused = [
        make_refusal(file=file, line=line, repeats=("blocks.2.mix", "blocks.3.mix")),
        make_refusal(op="aten.nonzero.default", module="", cure="", reason="Its size depends on values."),
    ]
    kernels = {"label": "checked by hand", "ops": {"native": 90, "refused": 4}}
    return placed_plan(**{"supported": False, "refused": refused, "kernels": kernels, **changes})


def hostile_plan() -> dict[str, Any]:
    """Every text of a plan is something that a careless page would run, break or choke on."""
    count = len(HOSTILE)
    rectangles = [{"x": 60 * i, "y": 0, "width": 60, "height": 900} for i in range(count)]
    layers = [
        make_layer(name, name, rectangle=rectangles[i], cores=54000, share_of_fabric=0.07, refused=i % 2)
        for i, name in enumerate(HOSTILE)
    ]
    refused = [
        make_refusal(
            op=name, module=name, file=name, line=i, reason=name, cure=name, phase=name, repeats=[name]
        )
        for i, name in enumerate(HOSTILE)
    ]
    ops = [
        {"op": name, "how": name, "count": 1, "phases": [name], "places": [{"file": name, "line": 1}] * 9}
        for name in HOSTILE
    ]
    swaps = [
        {"module": name, "what": name, "form": name, "reason": name, "file": name, "line": 2}
        for name in HOSTILE
    ]
    bad = HOSTILE[0]
    estimate = {
        **make_estimate(1, (0, 2)),
        "formula": bad,
        "unit": bad,
        "interval_from": bad,
        "sources": [bad],
    }
    return placed_plan(
        0,
        layers=layers,
        refused=refused,
        supported=False,
        ops=ops,
        subject=HOSTILE[1],
        target=bad,
        made_by=bad,
        mode=bad,
        optimizer=bad,
        why_mode=bad,
        why_fits=bad,
        machine={"name": HOSTILE[1]},
        kernels={"label": bad, "ops": dict.fromkeys(HOSTILE, 3)},
        legalise={"removed": 1, "of": 2, "applied": False, "swaps": swaps},
        changes=list(HOSTILE),
        notes=list(HOSTILE),
        inputs=[{"name": bad, "dtype": bad, "shape": [bad]}],
        estimates={name: {**estimate, "inputs": {name: name}} for name in HOSTILE},
    )
