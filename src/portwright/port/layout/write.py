"""The texts of the layout's files."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from portwright.port.layout.account import NOT_SAID
from portwright.port.layout.anatomy import optimizer_call
from portwright.port.layout.dissolve import PIECES
from portwright.port.layout.plan import Plan, closed_names, gone, needed_names
from portwright.port.layout.program import Frame, Global, Line, Setting, Var
from portwright.port.layout.text import Naming, definition_globals

INDENT = "    "
_RESERVED = frozenset(
    {
        "params",
        "device",
        "model",
        "train",
        "eval",
        "parameters",
        "state_dict",
        "predict",
        "get_optimizer",
        "accuracy",
    }
)
DATA_BASES = (
    "torch.utils.data.Dataset",
    "torch.utils.data.IterableDataset",
    "torch.utils.data.Sampler",
    "torch.utils.data.BatchSampler",
)
_BATCHES = '''class Batches(IterableDataset):
    """Batches that a function makes one after the other; each epoch calls it again."""

    def __init__(self, make, length=None):
        self.make, self.length = make, length

    def __iter__(self):
        return iter(self.make())

    def __len__(self):
        if self.length is None:
            raise TypeError("how many batches there are is not known")
        return self.length
'''


@dataclass
class Part:
    """One file in the making: its own code, and what that needs."""

    name: str
    code: list[str] = field(default_factory=list)
    globals: set[Global] = field(default_factory=set)
    imports: list[str] = field(default_factory=list)  # of ours
    definitions: list[str] = field(default_factory=list)


class Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parts = {name: Part(name) for name in ("model", "data", "utils", "left_over")}
        self.base_name = "BaseModel"
        while self.base_name in plan.definitions.homes:
            self.base_name = f"Ported{self.base_name}"
        taken = plan.definitions.homes
        self.batches_name = next(n for n in ("Batches", "HandMadeBatches", "LoopBatches") if n not in taken)
        self.maker_name = next(n for n in ("batches", "make_batches", "loop_batches") if n not in taken)
        self.uses_settings = False
        self.counts_steps = False
        self._pinned_lines: dict[str, list[Line]] = {}

    # -- names -----------------------------------------------------------------------------------------------------

    def naming(self, section: str, root: str = "params", **options: object) -> Naming:
        plan = self.plan
        naming = Naming(setting=lambda s: self._setting(s, section, root), **options)  # type: ignore[arg-type]
        for var in plan.constants:
            if var not in plan.pinned:
                naming.names[var] = plan.settings.at(var, section, root)
        for var in plan.pinned:
            naming.names[var] = var.name
        for space in plan.program.namespaces - plan.pinned:
            naming.names[space] = (
                self._table(space, section, root) if space in plan.program.tables else f"settings({root})"
            )
        return naming

    def _table(self, space: Var, section: str, root: str) -> str:
        """A dict of settings, made anew of the params."""
        settings = self.plan.settings
        rows = [
            f'"{k.key}": {settings.at(k, section, root)}'
            for k in settings.entries
            if isinstance(k, Setting) and k.space == space
        ]
        return f"{{{', '.join(rows)}}}"

    def _setting(self, setting: Setting, section: str, root: str) -> str:
        plan = self.plan
        if setting.space in plan.pinned and setting.space in plan.program.tables:
            return f'{setting.space.name}["{setting.key}"]'
        if setting in plan.settings.entries:
            return plan.settings.at(setting, section, root)
        stored = plan.anatomy.values.stores_of(setting)
        if stored and len(stored) == 1 and stored[0][0] is not None:
            value = plan.anatomy.values.try_evaluate(stored[0][0], stored[0][1], default=...)
            if value is not ...:
                return repr(value)
        return f"settings({root}).{setting.key}"

    def close(self, part: str, naming: Naming, lines: Iterable[Line] = ()) -> None:
        """Notes what a function's text needs of its file."""
        self.parts[part].globals |= naming.globals
        entry = self.plan.program.entry
        used = {var for line in lines for var in self.plan.slicer.of_line(line)[0]}
        used |= {
            s.space
            for line in lines
            for s in self.plan.slicer.of_line(line)[2]
            if s.space in self.plan.program.tables
        }
        self.parts[part].globals |= {Global(entry, v.name) for v in used if v in self.plan.pinned}

    def lines(
        self, lines: Iterable[Line], naming: Naming, indent: str, where: str, still: Naming | None = None
    ) -> str:
        text = ""
        for line in lines:
            chosen = naming
            if still is not None and self.plan.anatomy.model in self.plan.slicer.of_line(line)[1]:
                chosen = still
            written = self.plan.renderer.line(line, chosen, indent)
            text += written
            self.plan.account.place(line.frame.unit, line.node, where)
        return text

    # -- model.py ----------------------------------------------------------------------------------------------------

    def model(self) -> None:
        plan, part = self.plan, self.parts["model"]
        assert plan.anatomy.model is not None
        init = self.naming("model", device="device", moves=True)
        init.names[plan.anatomy.model] = "self.model"
        for var in plan.free:
            if var in plan.pinned:
                continue
            name = var.name + ("_" if var.name in _RESERVED else "")
            while f"self.{name}" in init.names.values():
                name += "_"
            init.names[var] = f"self.{name}"
        still = Naming(names=init.names, setting=init.setting, globals=init.globals)
        body = self.lines(plan.model.lines, init, INDENT * 2, "model.py: __init__", still)
        call = self.naming("model", root="self.params", device="device")
        for var in (plan.anatomy.model, *plan.free):
            call.names[var] = init.names.get(var, var.name)
        step = self._step(call)
        metric = self._metric(call)
        loss = self._loss(call)
        part.imports.append("from portwright import PyTorchBaseModel")
        lines = [f"class {self.base_name}(PyTorchBaseModel):"]
        lines += [f'{INDENT}"""The model with its loss, as the script computed it for a batch."""', ""]
        lines += [f"{INDENT}def __init__(self, params, device=None):", body.rstrip("\n")]
        if metric:
            part.imports.append("from portwright.runtime.metrics import AccuracyMetric")
            lines.append(f'{INDENT * 2}self.accuracy = AccuracyMetric(name="eval/accuracy")')
        lines += [f"{INDENT * 2}super().__init__(params=params, model=self.model, device=device)", ""]
        lines += [f"{INDENT}def __call__(self, data):"]
        lines += [f"{INDENT * 2}{text}" for text in self._unpack(call)]
        lines += [text for text in (step.rstrip("\n"), metric.rstrip("\n")) if text]
        lines += [f"{INDENT * 2}return {loss}"]
        if plan.tuning.own_optimizer:
            lines += ["", *self._own_optimizer(init)]
        part.code.append("\n".join(lines) + "\n")
        every = [*plan.model.lines, *plan.step.lines, *(plan.evaluation.extra if plan.evaluation else [])]
        self.close("model", init, every)
        self.close("model", call, every)

    def _step(self, naming: Naming) -> str:
        plan = self.plan
        division = plan.divides

        def undivided(frame: Frame, node: ast.AST) -> str | None:
            if node is division and isinstance(node, ast.BinOp):
                return plan.renderer.expression(node.left, frame, plain)
            return None

        plain = naming
        if division is not None:
            plain = Naming(
                names=naming.names, setting=naming.setting, globals=naming.globals, device=naming.device
            )
            naming.hook = undivided
        kept = [
            line for line in plan.step.lines
            if not (division is not None and (line.node is division or _only_divides(line.node, division)))
        ]  # fmt: skip
        for line in plan.step.lines:
            if line not in kept:
                plan.account.dissolve(
                    line.frame.unit,
                    line.node,
                    "optimizer.grad_accum_steps: run() averages over the batches of an update",
                )
        return self.lines(kept, naming, INDENT * 2, "model.py: __call__")

    def _loss(self, naming: Naming) -> str:
        plan = self.plan
        node, frame = plan.anatomy.loss
        if plan.divides is node and isinstance(node, ast.BinOp):
            node = node.left
        text = plan.renderer.expression(node, frame, naming)
        if plan.num_accumulated > 1 and plan.divides is None:
            # The script adds up gradients where run() averages them.
            text = f'{text} * self.params["optimizer"]["grad_accum_steps"]'
        return text

    def _unpack(self, naming: Naming) -> list[str]:
        plan = self.plan
        if plan.by_hand is not None:
            names = [naming.name(v) for v in plan.by_hand.yields]
            lines = (
                [f"{', '.join(names)} = data"]
                if len(names) > 1
                else ([f"{names[0]} = data"] if names != ["data"] else [])
            )
            first = names[0]
        else:
            assert plan.target is not None
            frame = plan.anatomy.batch_loop.frame
            text = plan.renderer.expression(plan.target, frame, naming)
            if isinstance(plan.target, ast.Tuple) and text.startswith("(") and text.endswith(")"):
                text = text[1:-1].strip()
            lines = [f"{text} = data"] if text != "data" else []
            names = [n.id for n in ast.walk(plan.target) if isinstance(n, ast.Name) and n.id != "_"]
            first = (
                names[0]
                if isinstance(plan.target, ast.Tuple)
                else f"next(iter({text}.values()))"
                if self._is_mapping(text)
                else text
            )
        if naming.uses_device:
            lines.append(f"device = {first}.device")
        return lines

    def _is_mapping(self, name: str) -> bool:
        """Whether the step reads a batch by keys."""
        for line in self.plan.step.lines:
            for node in ast.walk(line.node):
                if (
                    isinstance(node, ast.Subscript)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == name
                ):
                    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return False

    def _metric(self, naming: Naming) -> str:
        evaluation = self.plan.evaluation
        if evaluation is None or evaluation.labels is None or evaluation.predictions is None:
            return ""
        for mine, other in evaluation.same.items():
            naming.names[mine] = naming.name(other)
        extra = self.lines(evaluation.extra, naming, INDENT * 3, "model.py: __call__")
        labels = self.plan.renderer.expression(*evaluation.labels, naming)
        predictions = self.plan.renderer.expression(*evaluation.predictions, naming)
        head = f"{INDENT * 2}if not self.model.training:\n"
        return f"{head}{extra}{INDENT * 3}self.accuracy(labels={labels}, predictions={predictions})\n"

    def _own_optimizer(self, naming: Naming) -> list[str]:
        plan = self.plan
        assert plan.anatomy.optimizer is not None
        call, frame, item = optimizer_call(plan.anatomy, plan.anatomy.optimizer)
        keys = {n: key for n, key in plan.tuning.told.items() if key in plan.tuning.section}
        local = self.naming(
            "model",
            root="self.params",
            hook=lambda _, n: f'self.params["optimizer"]["{keys[n]}"]' if n in keys else None,
        )
        local.names[plan.anatomy.model] = "self.model"  # type: ignore[index]
        for var in plan.free:
            local.names.setdefault(var, naming.names.get(var, var.name))
        reads = plan.slicer.mentions(call, frame)[0] - {plan.anatomy.model}
        made = [line for line in plan.model.lines if plan.slicer.of_line(line)[1] & reads]
        needed = plan.slicer.cut(made, [(call, frame)])
        text = self.lines(needed.lines, local, INDENT * 2, "model.py: get_optimizer")
        text += f"{INDENT * 2}return {plan.renderer.expression(call, frame, local)}"
        self.close("model", local, needed.lines)
        plan.account.place(item.frame.unit, item.node, "model.py: get_optimizer")
        return [f"{INDENT}def get_optimizer(self):", text]

    # -- data.py -------------------------------------------------------------------------------------------------------

    def data(self) -> None:
        plan, part = self.plan, self.parts["data"]
        if plan.by_hand is not None:
            part.code += [_BATCHES.replace("Batches", self.batches_name, 1), self._by_hand()]
            part.imports.append("from torch.utils.data import DataLoader, IterableDataset")
            if plan.eval_loader is not None:
                part.code.append(
                    self._loader("get_eval_dataloader", plan.evaluated.lines, plan.eval_loader, "eval_input")
                )
        elif plan.shares_data:
            assert plan.train_loader is not None
            assert plan.eval_loader is not None
            both = [
                line
                for line in plan.anatomy.setup
                if line in plan.train.lines or line in plan.evaluated.lines
            ]
            both += [line for line in plan.evaluated.lines if line not in plan.anatomy.setup]
            part.code.append(self._loaders(both))
        else:
            assert plan.train_loader is not None
            part.code.append(
                self._loader("get_train_dataloader", plan.train.lines, plan.train_loader, "train_input")
            )
            if plan.eval_loader is not None:
                part.code.append(
                    self._loader("get_eval_dataloader", plan.evaluated.lines, plan.eval_loader, "eval_input")
                )
        if plan.eval_loader is None:
            part.code.append(self._no_eval_loader())

    def _loader(self, name: str, lines: list[Line], loader: tuple[ast.expr, Frame], section: str) -> str:
        naming = self._data_naming(section)
        body = self.lines(lines, naming, INDENT, f"data.py: {name}")
        returned = self.plan.renderer.expression(*loader, naming)
        self.close("data", naming, lines)
        return f"def {name}(params):\n{body}{INDENT}return {returned}\n"

    def _no_eval_loader(self) -> str:
        """What stands for a loader that the script has not, or that cannot be told."""
        plan = self.plan
        if plan.eval_phase is not None:
            return self._other_phase()
        head, name = "def get_eval_dataloader(params):\n", plan.program.entry.path.name
        if plan.evaluates_training:
            return (
                f'{head}{INDENT}"""{name} evaluates on its training data alone."""\n'
                f"{INDENT}return get_train_dataloader(params)\n"
            )
        self.parts["data"].imports.append("import portwright.errors")
        what = (
            f"which data {name} evaluates on cannot be told"
            if plan.evaluations
            else f"{name} has no evaluation that was found"
        )
        return (
            f"{head}{INDENT}raise portwright.errors.UserError(\n{INDENT * 2}{f'there are no evaluation data: {what}.'!r},\n"
            f'{INDENT * 2}"Return a loader of them in get_eval_dataloader() of data.py.",\n{INDENT})\n'
        )

    def _other_phase(self) -> str:
        """The loader of `for phase in ["train", "val"]` once more, for the other phase."""
        plan = self.plan
        assert plan.train_loader is not None
        assert plan.program.phases is not None
        training, _ = plan.program.phases
        naming = self._data_naming("train_input")
        naming.hook = lambda frame, node: repr(plan.eval_phase) if node is training else None
        body = self.lines(plan.train.lines, naming, INDENT, "data.py: get_eval_dataloader")
        returned = plan.renderer.expression(*plan.train_loader, naming)
        self.close("data", naming, plan.train.lines)
        return f"def get_eval_dataloader(params):\n{body}{INDENT}return {returned}\n"

    def _loaders(self, lines: list[Line]) -> str:
        plan = self.plan
        assert plan.train_loader is not None
        assert plan.eval_loader is not None
        naming = self._data_naming("train_input")
        other = self._data_naming("eval_input")
        other.globals = naming.globals
        body = ""
        for line in lines:
            chosen = naming if line in plan.train.lines else other
            other.names.update({v: n for v, n in naming.names.items() if v not in plan.constants})
            body += self.lines([line], chosen, INDENT, "data.py: make_dataloaders")
            naming.names.update({v: n for v, n in other.names.items() if v not in plan.constants})
        loaders = [
            plan.renderer.expression(*loader, naming) for loader in (plan.train_loader, plan.eval_loader)
        ]
        self.close("data", naming, lines)
        text = f'def make_dataloaders(params):\n{INDENT}"""Both loaders, which come from the same data."""\n{body}{INDENT}return {", ".join(loaders)}\n'
        for index, name in enumerate(("get_train_dataloader", "get_eval_dataloader")):
            text += f"\n\ndef {name}(params):\n{INDENT}return make_dataloaders(params)[{index}]\n"
        return text

    def _by_hand(self) -> str:
        plan = self.plan
        made = plan.by_hand
        assert made is not None
        assert isinstance(plan.anatomy.batch_loop.node, ast.For)
        loop = plan.anatomy.batch_loop
        assert isinstance(loop.node, ast.For)
        naming = self._data_naming("train_input")
        body = self.lines(plan.train.lines, naming, INDENT, "data.py: get_train_dataloader")
        inner = self.lines(made.of_epoch, naming, INDENT * 2, "data.py: get_train_dataloader")
        target = plan.renderer.expression(loop.node.target, loop.frame, naming)
        iterable = plan.renderer.expression(loop.node.iter, loop.frame, naming)
        inner += f"{INDENT * 2}for {target} in {iterable}:\n"
        inner += self.lines(made.lines, naming, INDENT * 3, "data.py: get_train_dataloader")
        inner += f"{INDENT * 3}yield {', '.join(naming.name(v) for v in made.yields)}\n"
        own = {v for line in made.of_epoch for v in plan.slicer.of_line(line)[1]}
        if made.length and plan.slicer.mentions(*made.length)[0] & own:
            made.length = None
        length = f", len({plan.renderer.expression(*made.length, naming)})" if made.length else ""
        if not length and not plan.num_updates and self._ends(loop.node.iter, loop.frame):
            length = f", sum(1 for _ in {self.maker_name}())"
            plan.in_epochs.setdefault("steps_per_epoch", 1)
        self.close("data", naming, [*plan.train.lines, *made.of_epoch, *made.lines])
        if not length and not plan.num_updates:
            plan.account.leave(
                loop.frame.unit, loop.node, "how many batches an epoch has is known only when the script runs",
                "Set runconfig.steps_per_epoch, or runconfig.max_steps.", NOT_SAID,
            )  # fmt: skip
        return (
            f"def get_train_dataloader(params):\n{body}\n{INDENT}def {self.maker_name}():\n{inner}\n"
            f"{INDENT}return DataLoader({self.batches_name}({self.maker_name}{length}), batch_size=None)\n"
        )

    def _ends(self, iterable: ast.expr, frame: Frame) -> bool:
        """Whether a generator of the script's surely comes to an end, so that its batches can be counted."""
        calls = [n for n in ast.walk(iterable) if isinstance(n, ast.Call)]
        found = [self.plan.program.callee(call, frame) for call in calls]
        functions = [f[1] for f in found if f is not None]
        return bool(functions) and not any(isinstance(n, ast.While) for f in functions for n in ast.walk(f))

    def _data_naming(self, section: str) -> Naming:
        naming = self.naming(section, device='"cpu"')
        assert self.plan.anatomy.model is not None
        return naming

    # -- utils.py --------------------------------------------------------------------------------------------------------

    def utils(self) -> None:
        plan, part = self.plan, self.parts["utils"]
        lines = [
            "def set_defaults(params):",
            f'{INDENT}"""Completes params.yaml; run() calls it before anything else."""',
        ]
        lines += [
            f'{INDENT}for section in ("train_input", "eval_input", "model", "runconfig"):',
            f"{INDENT * 2}params.setdefault(section, {{}})",
        ]
        for section in ("train_input", "eval_input", "model"):
            defaults = {e.key: e.value for e in plan.settings.entries.values() if section in e.sections}
            for key, value in defaults.items():
                lines.append(f'{INDENT}params["{section}"].setdefault("{key}", {value!r})')
        for name in ("seed", "num_epochs", "max_steps"):
            if name in plan.settings.own["runconfig"]:
                lines.append(
                    f'{INDENT}params["runconfig"].setdefault("{name}", {plan.settings.own["runconfig"][name]!r})'
                )
        lines += self._schedule_lines()
        if plan.in_epochs:
            self.counts_steps = True
            names = ", ".join(f'"{name}"' for name in plan.in_epochs)
            lines.append(f'{INDENT}if not {{{names}}} <= params["runconfig"].keys():')
            lines.append(f"{INDENT * 2}every = steps_per_epoch(params)  # the script counts epochs")
            for name, count in plan.in_epochs.items():
                value = "every" if count == 1 else f"{count} * every"
                lines.append(f'{INDENT * 2}params["runconfig"].setdefault("{name}", {value})')
        lines.append(f"{INDENT}return params")
        part.code.insert(0, "\n".join(lines) + "\n")
        if self.counts_steps:
            part.code.append(
                f'def steps_per_epoch(params):\n{INDENT}"""Updates that one pass over the training data makes."""\n'
                f"{INDENT}from data import get_train_dataloader\n\n"
                f"{INDENT}loader = get_train_dataloader(params)\n"
                f"{INDENT}num_batches = len({'loader.dataset' if plan.by_hand else 'loader'})\n"
                f'{INDENT}return max(num_batches // params["optimizer"].get("grad_accum_steps", 1), 1)\n'
            )
        if self.uses_settings or any("settings(" in code for p in self.parts.values() for code in p.code):
            part.code.append(self._settings_function())

    def _schedule_lines(self) -> list[str]:
        plan, tuning = self.plan, self.plan.tuning
        lines: list[str] = []
        if tuning.in_epochs:
            self.counts_steps = True
            key = tuning.in_epochs
            spec = plan.settings.own["optimizer"]["learning_rate"]
            count = spec.pop(key)
            lines += [f'{INDENT}schedule = params["optimizer"]["learning_rate"]']
            lines += [f'{INDENT}if isinstance(schedule, dict) and "{key}" not in schedule:']
            if isinstance(count, list):
                value = f"[epoch * steps_per_epoch(params) for epoch in {count!r}]"
            else:
                value = f"{count!r} * steps_per_epoch(params)" if count != 1 else "steps_per_epoch(params)"
            lines += [f'{INDENT * 2}schedule["{key}"] = {value}  # the script counts epochs']
            what = f"{count} epochs" if count != 1 else "one epoch"
            plan.settings.comments["optimizer", "learning_rate"] = (
                f"{key} is {what}: set_defaults in utils.py counts its steps"
            )
        elif tuning.scheduler is not None:
            lines += [f'{INDENT}if isinstance(params["optimizer"]["learning_rate"], (int, float)):']
            lines += [f'{INDENT * 2}params["optimizer"]["learning_rate"] = learning_rates(params)']
            self.parts["utils"].code.append(self._rates_function())
        return lines

    def _rates_function(self) -> str:
        """The script's own scheduler, run ahead of time: run()'s rates are a function of the step."""
        plan, tuning = self.plan, self.plan.tuning
        assert tuning.scheduler is not None
        assert plan.anatomy.optimizer is not None
        call, frame = tuning.scheduler
        self.counts_steps = True
        naming = self.naming("train_input")
        loader = plan.program.reference(*plan.train_loader) if plan.train_loader else None
        given = {plan.anatomy.optimizer}
        before = ""
        lines = [line for line in plan.anatomy.setup if line not in gone(plan, plan.anatomy.setup)]
        if isinstance(loader, Var):
            given.add(loader)
        skipped = [line for line in lines if plan.slicer.of_line(line)[1] & given]
        needed = plan.slicer.cut(lines, [(call, frame)], without=skipped)
        if isinstance(loader, Var) and loader in needed.needs:
            before = f"{INDENT}from data import get_train_dataloader\n\n{INDENT}{naming.name(loader)} = get_train_dataloader(params)\n"
        body = self.lines(needed.lines, naming, INDENT, "utils.py: learning_rates")
        optimizer = naming.name(plan.anatomy.optimizer)
        made = plan.renderer.expression(call, frame, naming)
        part = self.parts["utils"]
        part.imports += ["import warnings", "import torch"]
        self.close("utils", naming, needed.lines)
        every = "steps_per_epoch(params)" if tuning.per_epoch else "1"
        count = 'params["runconfig"]["num_epochs"]' + (
            "" if tuning.per_epoch else " * steps_per_epoch(params)"
        )
        if "max_steps" in plan.settings.own["runconfig"]:
            count = 'params["runconfig"]["max_steps"]'
        return (
            f'def learning_rates(params):\n{INDENT}"""The rates that the script\'s scheduler gives, as a schedule of params.yaml."""\n'
            f"{before}"
            f'{INDENT}{optimizer} = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=params["optimizer"]["learning_rate"], momentum=0.9)\n'
            f"{body}{INDENT}scheduler = {made}\n"
            f"{INDENT}rates, milestones, every = [], [], {every}\n"
            f"{INDENT}for count in range({count}):\n"
            f'{INDENT * 2}rate = float({optimizer}.param_groups[0]["lr"])\n'
            f"{INDENT * 2}if not rates or rate != rates[-1]:\n"
            f"{INDENT * 3}rates.append(rate)\n"
            f"{INDENT * 3}milestones.append(count * every)\n"
            f"{INDENT * 2}with warnings.catch_warnings():\n"
            f'{INDENT * 3}warnings.simplefilter("ignore")  # nothing is trained here, so there is no optimizer.step()\n'
            f"{INDENT * 3}scheduler.step()\n"
            f'{INDENT}return {{"scheduler": "PiecewiseConstant", "learning_rates": rates, "milestones": milestones[1:]}}\n'
        )

    def _settings_function(self) -> str:
        plan = self.plan
        self.parts["utils"].imports.append("from argparse import Namespace")
        rows = []
        for key in plan.settings.entries:
            if isinstance(key, Setting) and key.space not in plan.program.tables:
                rows.append(f"{INDENT * 2}{key.key}={plan.settings.at(key, 'train_input')},\n")
        for setting, stored in plan.anatomy.values.stores.items():
            if setting in plan.settings.entries:
                continue
            default = (
                plan.anatomy.values.options[setting].default
                if setting in plan.anatomy.values.options
                else None
            )
            value = (
                default
                if stored[0][0] is None
                else plan.anatomy.values.try_evaluate(*stored[0], default=default)
            )
            rows.append(f"{INDENT * 2}{setting.key}={value!r},\n")
        return (
            f'def settings(params):\n{INDENT}"""The settings under the names that the script\'s code knows them by."""\n'
            f"{INDENT}return Namespace(\n{''.join(rows)}{INDENT})\n"
        )

    # -- definitions ---------------------------------------------------------------------------------------------------

    def distribute(self, opened: set[ast.AST]) -> None:
        """Gives each function, class and global constant of the script its file."""
        plan = self.plan
        definitions = plan.definitions
        entry = plan.program.entry
        needs = {
            name: closed_names(plan, {g.name for g in part.globals if g.unit is entry})
            for name, part in self.parts.items()
        }
        for name, home in definitions.homes.items():
            if definitions.is_import(name):
                continue
            is_variable = not definitions.is_definition(name)
            users = [part for part in ("model", "data", "utils") if name in needs[part]]
            if is_variable and not users:
                continue
            if not users:
                if home in opened:
                    continue
                users = [self._natural_home(home)]
            where = users[0] if len(users) == 1 else "utils"
            definitions.files[name] = where
        # What a shared definition needs is shared.
        changed = True
        while changed:
            changed = False
            for name, where in list(definitions.files.items()):
                if where != "utils" or not definitions.is_definition(name):
                    continue
                for inner in definition_globals(entry, definitions.homes[name]):
                    if definitions.files.get(inner, "utils") != "utils":
                        definitions.files[inner] = "utils"
                        changed = True
        for name, where in definitions.files.items():
            self.parts[where].definitions.append(name)
            plan.account.place(entry, definitions.homes[name], f"{where}.py")
        for home in definitions.homes.values():
            if home in opened and not plan.account.knows(home):
                plan.account.dissolve(entry, home, PIECES)

    def _natural_home(self, home: ast.stmt) -> str:
        names = self.plan.program.entry.names
        if isinstance(home, ast.ClassDef):
            if names.is_module_node(home):
                return "model"
            if any(base in DATA_BASES for base in names.bases_of(home)):
                return "data"
        return "left_over"

    def text(self, name: str, title: str) -> str:
        """A whole file."""
        plan, part = self.plan, self.parts[name]
        definitions, entry = plan.definitions, plan.program.entry
        ordered = sorted(part.definitions, key=lambda n: definitions.homes[n].lineno)
        wanted = {g.name for g in part.globals if g.unit is entry}
        # in the script's order, since one may run what another defines
        pieces: list[tuple[int, bool, str]] = []
        written: set[Line] = set()
        for each in ordered:
            if definitions.is_definition(each):
                wanted |= definition_globals(entry, definitions.homes[each])
                pieces.append(
                    (definitions.homes[each].lineno, True, definitions.text(each).strip("\n") + "\n")
                )
            else:
                pieces += self._constant(name, each, wanted, written)
        imports = definitions.import_text(entry, {n for n in wanted if definitions.is_import(n)})
        foreign = definitions.foreign_text(part.globals)
        others: dict[str, list[str]] = {}
        for each in sorted(wanted):
            where = definitions.files.get(each)
            if where is not None and where != name:
                others.setdefault(where, []).append(each)
        if name in ("model", "data") and any("settings(" in code for code in part.code):
            others.setdefault("utils", []).append("settings")
        own = [
            f"from {where} import {', '.join(sorted(set(names)))}" for where, names in sorted(others.items())
        ]
        future = [line for line in imports if "__future__" in line]
        first = "\n".join(
            dict.fromkeys(line for line in [*imports, *foreign, *part.imports] if line not in future)
        )
        second = "\n".join(own)
        blocks: list[str] = []
        was_constant = False
        for _, is_definition, text in sorted(pieces, key=lambda p: p[0]):
            if was_constant and not is_definition:
                blocks[-1] += text
            else:
                blocks.append(text)
            was_constant = not is_definition
        body = "\n\n".join([*blocks, *part.code])
        head = "\n\n".join(text for text in ("\n".join(future), first, second) if text)
        return f'"""{title}"""\n\n' + (f"{head}\n\n\n" if head else "\n") + body

    def _constant(
        self, part: str, name: str, wanted: set[str], written: set[Line]
    ) -> list[tuple[int, bool, str]]:
        """A global that definitions read: the statements that make it, at the top of their file."""
        plan = self.plan
        var = plan.program.lookup(plan.program.main, name)
        assert isinstance(var, Var)
        if var in plan.program.tables:
            made = [
                line
                for line in plan.anatomy.setup
                if line in plan.anatomy.values.argparse_lines and var in plan.slicer.of_line(line)[1]
            ]
            plan.account.leave(
                plan.program.entry, made[0].node, f"functions read '{name}' as a global, so its values stand in {part}.py and params.yaml does not reach them",
                "Hand the settings to these functions as arguments.", NOT_SAID,
            )  # fmt: skip
            return [(line.node.lineno, False, plan.renderer.line(line, Naming(), "")) for line in made]
        if var in plan.program.namespaces:
            rows = ", ".join(
                f"{k.key}={e.value!r}" for k, e in plan.settings.entries.items() if isinstance(k, Setting)
            )
            line = next(iter(plan.anatomy.values.argparse_lines))
            plan.account.leave(
                plan.program.entry, line.node, f"functions read '{name}' as a global, so its values stand in {part}.py and params.yaml does not reach them",
                "Hand the settings to these functions as arguments.", NOT_SAID,
            )  # fmt: skip
            self.parts[part].imports.append("from argparse import Namespace")
            return [(line.node.lineno, False, f"{name} = Namespace({rows})\n")]
        naming = Naming(
            setting=lambda s: repr(plan.settings.entries[s].value) if s in plan.settings.entries else s.key
        )
        needed = plan.slicer.cut(plan.anatomy.setup, variables=[var])
        pieces = []
        for line in needed.lines:
            if line in written or line in plan.anatomy.values.argparse_lines:
                continue
            written.add(line)
            pieces.append((line.node.lineno, False, plan.renderer.line(line, naming, "")))
            plan.account.place(line.frame.unit, line.node, f"{part}.py")
        wanted |= needed_names(plan, needed.lines)
        return pieces


def _only_divides(node: ast.stmt, division: ast.AST) -> bool:
    """`loss = loss / n`."""
    if node is division:
        return True
    return (
        isinstance(node, ast.Assign)
        and node.value is division
        and isinstance(division, ast.BinOp)
        and isinstance(division.left, ast.Name)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == division.left.id
    )


RUN = '''"""Trains and evaluates this model: python run.py CPU --mode train --params configs/params.yaml"""

from data import get_eval_dataloader, get_train_dataloader
from model import {model}
from utils import set_defaults

from portwright import run


def main():
    run(
        model_fn={model},
        train_data_fn=get_train_dataloader,
        eval_data_fn=get_eval_dataloader,
        default_params_fn=set_defaults,
    )


if __name__ == "__main__":
    main()
'''
