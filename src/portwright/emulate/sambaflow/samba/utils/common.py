"""sambaflow.samba.utils.common."""

from __future__ import annotations

import argparse
from typing import Any

from torch import nn

from portwright.emulate.sambaflow.samba.session import session
from portwright.emulate.sambaflow.samba.utils import measure_performance, measure_sections, trace_graph
from portwright.emulate.sambaflow.samba.utils.pef_utils import get_pefmeta


def common_app_driver(
    args: argparse.Namespace,
    model: nn.Module,
    inputs: Any,
    optim: Any = None,
    name: str | None = None,
    app_dir: str | None = None,
    squeeze_bs_dim: bool = False,
    get_output_grads: bool | None = None,
    init_output_grads: bool = True,
    **options: Any,
) -> None:
    """Serves `compile`, `measure-performance` and `measure-sections`; `run` and `test` are the script's own."""
    if args.command == "compile":
        session.compile(
            model,
            inputs,
            optim,
            name=name,
            app_dir=app_dir,
            squeeze_bs_dim=squeeze_bs_dim,
            init_output_grads=init_output_grads,
            config_dict=vars(args),
            pef_metadata=get_pefmeta(args, model),
        )
    elif args.command == "measure-performance":
        trace_graph(model, inputs, optim, pef=args.pef, init_output_grads=init_output_grads)
        measure_performance(model, inputs, n_iterations=args.num_iterations)
    elif args.command == "measure-sections":
        measure_sections()
