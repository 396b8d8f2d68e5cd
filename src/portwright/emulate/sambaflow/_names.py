"""Every name of SambaFlow that public code was seen to use, and what the emulator does with it: docs/emulated-sambaflow.md is made from this.

Seen in: SambaNova's tutorials and model zoo, its documentation and API reference, and public ports of users.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from typing import Literal

Status = Literal["emulated", "accepted, no effect", "refused"]

_REFUSALS = (  # why, what to do instead, the names
    (
        "programs of several graphs are not emulated.",
        "",
        "samba.graph.FwdGraph samba.session.add_graph samba.session.compile_multigraph "
        "samba.session.init_multigraph_runtime samba.session.add_aux_tensor samba.session.is_valid_aux_tensor_name",
    ),
    ("programs of several graphs are not emulated.", "Use trace_graph.", "samba.utils.trace_multigraph"),
    (
        "dynamic shapes are not emulated: a program is for fixed ones.",
        "",
        "samba.session.create_dynamic_dim samba.session.load_dynamic_dims_config",
    ),
    ("the precision is chosen at compile time, by --graphamp-preset.", "", "samba.session.disable_graphamp"),
    ("how functions are overridden is the vendor's own affair.", "", "samba.session.use_static_functional"),
    (
        "an optimizer's state is read through its state_dict() after session.to_cpu.",
        "",
        "samba.session.optim_dict",
    ),
    (
        "the emulator rounds to nearest.",
        "Leave stochastic rounding off here.",
        "samba.env.enable_conv_grad_accum_stoc samba.env.enable_addbias_grad_accum_stoc",
    ),
    (
        "parallel patterns are not emulated.",
        "",
        "samba.functional.stir.sn_imm samba.functional.stir.sn_iteridx samba.functional.stir.sn_select "
        "samba.functional.stir.sn_zipmapreduce",
    ),
    ("it belongs to parallel patterns, which are not emulated.", "", "samba.groupby"),
    (
        "weights are made at once here, by torch's own generator.",
        "",
        "samba.lazy_param.RNGProvider samba.lazy_param.RNGProviderFactory",
    ),
    (
        "SambaFlow's API reference has SGD, AdamW and SparseAdamW, and no Adam; a few public ports call it all the same.",
        "Use samba.optim.AdamW with weight_decay=0, which is Adam.",
        "samba.optim.Adam",
    ),
    ("no public example shows what it does.", "Use samba.optim.AdamW.", "samba.optim.SparseAdamW"),
    (
        "no public document says what it computes.",
        "",
        "samba.sn_private.sn_gather samba.sn_private.sn_multinomial samba.sn_private.sn_scatter",
    ),
    ("no public document says what it fills.", "Use a mask and masked_fill.", "samba.triu_fill"),
    ("no public document says what it writes.", "", "samba.utils.benchmark_acc.AccuracyReport"),
    (
        "no public document says what it does.",
        "Write the loop.",
        "samba.utils.trainer.samba.train samba.utils.trainer.torch.train",
    ),
    (
        "its format is not public.",
        "Use model.load_state_dict.",
        "samba.utils.checkpoint.load_sharded_checkpoint",
    ),
    ("there is no compiler behind this.", "", "samba.utils.create_mac_resource_report"),
    ("an emulated run has no times worth measuring.", "", "samba.utils.measure_sections"),
    ("it fetches data.", "Make a torch DataLoader.", "samba.utils.dataset.mnist.prepare_dataloader"),
)

REFUSED = {name: (why, instead) for why, instead, names in _REFUSALS for name in names.split()}
"""Names that raise when they are called, and attributes of samba.session that raise: why, and what to do instead."""

NO_EFFECT = """
mac.metadata.ConvTilingMetadata samba.directives.op_fusion samba.directives.sdpa_directives samba.env.disable_sgd_stoc
samba.is_internal samba.lazy_param.lazy_param samba.materialize.materialize samba.patched_torch
samba.profiler.Profiler samba.session.end_runtime_profile samba.session.end_samba_profile samba.session.profiler
samba.session.setup samba.session.start_runtime_profile samba.session.start_samba_profile samba.session.tracing
samba.test.consistency_test
"""

_EMULATED = """
__version__ logging.samba_logger samba.SambaTensor samba.SambaTensor.batch_dim samba.SambaTensor.has_data
samba.SambaTensor.sn_data samba.SambaTensor.sn_name samba.SambaTensor.torch samba.addmm samba.argconf.args.CommonArgs
samba.argconf.args.CompileArgs samba.argconf.args.RunArgs samba.from_named_dict samba.from_torch samba.from_torch_
samba.from_torch_model_ samba.from_torch_tensor samba.nn.parameter.SambaParameter samba.ones samba.optim.AdamW
samba.optim.AdamW.cpu samba.optim.SGD samba.optim.SGD.cpu samba.rand samba.randint samba.randn samba.randn_like
samba.sambaloader.SambaLoader samba.sambatensor.SambaTensor samba.sambatensor.from_torch_tensor
samba.session.buffer_dict samba.session.compile samba.session.dynamic_dims samba.session.get_tensors_by_name
samba.session.run samba.session.to_cpu samba.session.to_device samba.session.to_rdu samba.to_torch samba.utils.SNType
samba.utils.argparser.parse_app_args samba.utils.argparser.parse_yaml_to_args samba.utils.assert_close
samba.utils.common.common_app_driver samba.utils.dataset.mnist.dataset_transform samba.utils.get_file_dir
samba.utils.get_rank samba.utils.get_world_size samba.utils.init_output_grads samba.utils.is_main_process
samba.utils.measure_performance samba.utils.parse_dtype samba.utils.pef_utils.PefInfoStruct
samba.utils.pef_utils.get_pef_info samba.utils.pef_utils.get_pefmeta samba.utils.pef_utils.get_pefmeta_dict
samba.utils.set_seed samba.utils.trace_graph samba.utils.utils.trace_graph samba.zeros sambacollections.OrderedSet
"""

_INTRO = """# SambaFlow, emulated: every name that public code uses

There is no public package of SambaFlow, so there is no list of its names to hold this against: these are the ones that SambaNova's
tutorials, model zoo and documentation and public ports were seen to use. `portwright emulate rdu SCRIPT.py` runs a script against
them on this machine's CPU; docs/rdu.md says under which rules. A refused name can be imported, and raises when it is called.

| name | what the emulator does |
| --- | --- |"""


def find(name: str) -> object:
    """The object behind a dotted name, in our package."""
    # samba.session is an object under a module's name: the colon says where attributes begin.
    path = name.replace("sambaflow.samba.session", "sambaflow.samba:session")
    return pkgutil.resolve_name(f"portwright.emulate.{path}")


def rows() -> Iterator[tuple[str, Status, str]]:
    """Each name with what is done with it, and for refused ones why."""
    yield from ((f"sambaflow.{name}", "emulated", "") for name in _EMULATED.split())
    yield from ((f"sambaflow.{name}", "accepted, no effect", "") for name in NO_EFFECT.split())
    yield from ((f"sambaflow.{name}", "refused", why) for name, (why, _) in REFUSED.items())


def page(head: str) -> str:
    lines = [head + _INTRO]
    for name, status, why in sorted(rows(), key=lambda row: row[0].lower()):
        lines.append(f"| `{name}` | {status}{': ' + why.rstrip('.') if why else ''} |")
    return "\n".join(lines) + "\n"
