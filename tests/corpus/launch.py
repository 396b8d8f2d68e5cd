"""Runs a public project's script as its author would have, on a machine that the author did not have.

    launch.py [--cwd DIR] [--path DIR ...] [--no-cuda] [--old-names] [--no-graph] [--one-gpu] -- SCRIPT [ARGUMENTS ...]

The script itself is not touched. `--cwd` is where it expects to be started, `--path` where it expects its packages;
`--no-graph` leaves tensorboard without a picture of the model;
`--no-cuda` makes `.cuda()` stay where it is, for scripts that never ask whether there is a GPU; `--old-names` gives back
names that newer libraries have dropped; `--one-gpu` lets a script of several GPUs find one, which is the host.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(prog="launch.py")
    parser.add_argument("--cwd", type=Path)
    parser.add_argument("--path", type=Path, action="append", default=[])
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--old-names", action="store_true")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--one-gpu", action="store_true")
    options = parser.parse_args(sys.argv[1:split])
    script = Path(sys.argv[split + 1]).resolve()
    sys.argv = [str(script), *sys.argv[split + 2 :]]
    sys.path[0:1] = [str(script.parent), *(str(path.resolve()) for path in options.path)]
    if options.cwd is not None:
        os.chdir(options.cwd)
    if options.no_cuda:
        _stay_on_the_host()
    if options.old_names:
        _give_old_names_back()
    if options.no_graph:
        _draw_no_graph()
    if options.one_gpu:
        _be_the_only_gpu()
    runpy.run_path(str(script), run_name="__main__")


def _stay_on_the_host() -> None:
    import torch

    def stay(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self

    torch.Tensor.cuda = stay  # type: ignore[method-assign]
    torch.nn.Module.cuda = stay  # type: ignore[method-assign]
    torch.cuda.synchronize = lambda *args, **kwargs: None
    torch.cuda.reset_max_memory_allocated = lambda *args, **kwargs: None


def _be_the_only_gpu() -> None:
    import torch
    import torch.distributed
    import torch.nn.parallel

    def on_the_host(move: Any) -> Any:
        return lambda self, *args, **kwargs: self if isinstance(args[0], int) else move(self, *args, **kwargs)

    begin, parallel = torch.distributed.init_process_group, torch.nn.parallel.DistributedDataParallel
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda device: None
    torch.distributed.init_process_group = lambda backend, **kwargs: begin("gloo", **kwargs)
    torch.nn.parallel.DistributedDataParallel = lambda module, device_ids: parallel(module)  # type: ignore[misc, assignment]
    torch.Tensor.to = on_the_host(torch.Tensor.to)  # type: ignore[method-assign]
    torch.nn.Module.to = on_the_host(torch.nn.Module.to)  # type: ignore[method-assign]


def _draw_no_graph() -> None:
    from torch.utils.tensorboard import SummaryWriter

    def draw_nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        pass

    SummaryWriter.add_graph = draw_nothing  # type: ignore[method-assign]


def _give_old_names_back() -> None:
    import numpy

    for name, meaning in (("int", int), ("float", float), ("bool", bool), ("long", numpy.int64)):
        if not hasattr(numpy, name):
            setattr(numpy, name, meaning)


main()
