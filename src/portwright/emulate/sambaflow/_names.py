"""Every name of SambaFlow that public code was seen to use, and what the emulator does with it: docs/emulated-sambaflow.md is made from this.

Seen in: SambaNova's tutorials and model zoo, its documentation and API reference, and public ports of users.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Literal

Status = Literal["emulated", "accepted, no effect", "refused"]

_SEVERAL_GRAPHS = "programs of several graphs are not emulated"
_DYNAMIC = "dynamic shapes are not emulated: a program is for fixed ones"
REFUSED_OF_SESSION = {
    "add_graph": _SEVERAL_GRAPHS,
    "compile_multigraph": _SEVERAL_GRAPHS,
    "init_multigraph_runtime": _SEVERAL_GRAPHS,
    "add_aux_tensor": _SEVERAL_GRAPHS,
    "is_valid_aux_tensor_name": _SEVERAL_GRAPHS,
    "create_dynamic_dim": _DYNAMIC,
    "load_dynamic_dims_config": _DYNAMIC,
    "disable_graphamp": "the precision is chosen at compile time, by --graphamp-preset",
    "use_static_functional": "how functions are overridden is the vendor's own affair",
    "optim_dict": "an optimizer's state is read through its state_dict() after session.to_cpu",
}
"""Attributes of samba.session that raise."""

_ACCEPTED = {
    "sambaflow.mac.metadata.ConvTilingMetadata",
    "sambaflow.samba.directives.op_fusion",
    "sambaflow.samba.directives.sdpa_directives",
    "sambaflow.samba.env.disable_sgd_stoc",
    "sambaflow.samba.is_internal",
    "sambaflow.samba.lazy_param.lazy_param",
    "sambaflow.samba.materialize.materialize",
    "sambaflow.samba.patched_torch",
    "sambaflow.samba.profiler.Profiler",
    "sambaflow.samba.session.end_runtime_profile",
    "sambaflow.samba.session.end_samba_profile",
    "sambaflow.samba.session.profiler",
    "sambaflow.samba.session.setup",
    "sambaflow.samba.session.start_runtime_profile",
    "sambaflow.samba.session.start_samba_profile",
    "sambaflow.samba.session.tracing",
    "sambaflow.samba.test.consistency_test",
}

_NAMES = """
sambaflow.__version__
sambaflow.logging.samba_logger
sambaflow.mac.metadata.ConvTilingMetadata
sambaflow.samba.SambaTensor
sambaflow.samba.SambaTensor.batch_dim
sambaflow.samba.SambaTensor.has_data
sambaflow.samba.SambaTensor.sn_data
sambaflow.samba.SambaTensor.sn_name
sambaflow.samba.SambaTensor.torch
sambaflow.samba.addmm
sambaflow.samba.argconf.args.CommonArgs
sambaflow.samba.argconf.args.CompileArgs
sambaflow.samba.argconf.args.RunArgs
sambaflow.samba.directives.op_fusion
sambaflow.samba.directives.sdpa_directives
sambaflow.samba.env.disable_sgd_stoc
sambaflow.samba.env.enable_addbias_grad_accum_stoc
sambaflow.samba.env.enable_conv_grad_accum_stoc
sambaflow.samba.from_named_dict
sambaflow.samba.from_torch
sambaflow.samba.from_torch_
sambaflow.samba.from_torch_model_
sambaflow.samba.from_torch_tensor
sambaflow.samba.functional.stir.sn_imm
sambaflow.samba.functional.stir.sn_iteridx
sambaflow.samba.functional.stir.sn_select
sambaflow.samba.functional.stir.sn_zipmapreduce
sambaflow.samba.graph.FwdGraph
sambaflow.samba.groupby
sambaflow.samba.is_internal
sambaflow.samba.lazy_param.RNGProvider
sambaflow.samba.lazy_param.RNGProviderFactory
sambaflow.samba.lazy_param.lazy_param
sambaflow.samba.materialize.materialize
sambaflow.samba.nn.parameter.SambaParameter
sambaflow.samba.ones
sambaflow.samba.optim.Adam
sambaflow.samba.optim.AdamW
sambaflow.samba.optim.AdamW.cpu
sambaflow.samba.optim.SGD
sambaflow.samba.optim.SGD.cpu
sambaflow.samba.optim.SparseAdamW
sambaflow.samba.patched_torch
sambaflow.samba.profiler.Profiler
sambaflow.samba.rand
sambaflow.samba.randint
sambaflow.samba.randn
sambaflow.samba.randn_like
sambaflow.samba.sambaloader.SambaLoader
sambaflow.samba.sambatensor.SambaTensor
sambaflow.samba.sambatensor.from_torch_tensor
sambaflow.samba.session.buffer_dict
sambaflow.samba.session.compile
sambaflow.samba.session.dynamic_dims
sambaflow.samba.session.end_runtime_profile
sambaflow.samba.session.end_samba_profile
sambaflow.samba.session.get_tensors_by_name
sambaflow.samba.session.profiler
sambaflow.samba.session.run
sambaflow.samba.session.setup
sambaflow.samba.session.start_runtime_profile
sambaflow.samba.session.start_samba_profile
sambaflow.samba.session.to_cpu
sambaflow.samba.session.to_device
sambaflow.samba.session.to_rdu
sambaflow.samba.session.tracing
sambaflow.samba.sn_private.sn_gather
sambaflow.samba.sn_private.sn_multinomial
sambaflow.samba.sn_private.sn_scatter
sambaflow.samba.test.consistency_test
sambaflow.samba.to_torch
sambaflow.samba.triu_fill
sambaflow.samba.utils.SNType
sambaflow.samba.utils.argparser.parse_app_args
sambaflow.samba.utils.argparser.parse_yaml_to_args
sambaflow.samba.utils.assert_close
sambaflow.samba.utils.benchmark_acc.AccuracyReport
sambaflow.samba.utils.checkpoint.load_sharded_checkpoint
sambaflow.samba.utils.common.common_app_driver
sambaflow.samba.utils.create_mac_resource_report
sambaflow.samba.utils.dataset.mnist.dataset_transform
sambaflow.samba.utils.dataset.mnist.prepare_dataloader
sambaflow.samba.utils.get_file_dir
sambaflow.samba.utils.get_rank
sambaflow.samba.utils.get_world_size
sambaflow.samba.utils.init_output_grads
sambaflow.samba.utils.is_main_process
sambaflow.samba.utils.measure_performance
sambaflow.samba.utils.measure_sections
sambaflow.samba.utils.parse_dtype
sambaflow.samba.utils.pef_utils.PefInfoStruct
sambaflow.samba.utils.pef_utils.get_pef_info
sambaflow.samba.utils.pef_utils.get_pefmeta
sambaflow.samba.utils.pef_utils.get_pefmeta_dict
sambaflow.samba.utils.set_seed
sambaflow.samba.utils.trace_graph
sambaflow.samba.utils.trace_multigraph
sambaflow.samba.utils.trainer.samba.train
sambaflow.samba.utils.trainer.torch.train
sambaflow.samba.utils.utils.trace_graph
sambaflow.samba.zeros
sambaflow.sambacollections.OrderedSet
"""

_INTRO = """# SambaFlow, emulated: every name that public code uses

There is no public package of SambaFlow, so there is no list of its names to hold this against: these are the ones that SambaNova's
tutorials, model zoo and documentation and public ports were seen to use. `portwright emulate rdu SCRIPT.py` runs a script against
them on this machine's CPU; docs/rdu.md says under which rules. A refused name can be imported, and raises when it is called.

| name | what the emulator does |
| --- | --- |"""


def find(name: str) -> object:
    """The object behind a dotted name, in our package."""
    words = name.split(".")
    if words[:3] == ["sambaflow", "samba", "session"]:  # an object under a module's name
        found: object = importlib.import_module(f"{__package__}.samba").session
        return found if len(words) == 3 else getattr(found, words[3])
    for count in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(["portwright", "emulate", *words[:count]]))
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            found = getattr(found, word)
        return found
    raise ModuleNotFoundError(name)


def rows() -> Iterator[tuple[str, Status, str]]:
    """Each name with what is done with it, and for refused ones why."""
    for name in _NAMES.split():
        why = getattr(find(name), "refused", None)
        status: Status = "refused" if why else "accepted, no effect" if name in _ACCEPTED else "emulated"
        yield name, status, str(why or "")
    for name, why in REFUSED_OF_SESSION.items():
        yield f"sambaflow.samba.session.{name}", "refused", why


def page(head: str) -> str:
    lines = [head + _INTRO]
    for name, status, why in sorted(rows(), key=lambda row: row[0].lower()):
        lines.append(f"| `{name}` | {status}{': ' + why.rstrip('.') if why else ''} |")
    return "\n".join(lines) + "\n"
