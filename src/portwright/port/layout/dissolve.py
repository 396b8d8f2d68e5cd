"""Statements that run() makes needless, and what of it does their work."""

from __future__ import annotations

import ast

from portwright.port.layout.anatomy import Anatomy, is_device, is_optimizer, is_scheduler, kind_of, made_by
from portwright.port.layout.program import Frame, Header, Line, Loop, Var
from portwright.port.layout.values import UnknownError, loads_checkpoint
from portwright.port.tree import FUNCTIONS

LOGS = "run() logs the loss, the learning rate and the speed (runconfig.log_steps)"
SAVES = "run() saves checkpoints (runconfig.checkpoint_steps)"
SEEDS = "runconfig.seed"
PLACES = "the target named on run.py's command line, which run() moves model and batches to"
MODES = "run() sets train and eval mode"
ARGUMENTS = "configs/params.yaml"
RESUMES = "run() resumes from model_dir by itself; --checkpoint_path names another checkpoint"
DISTRIBUTES = "run() spreads over processes (torchrun) and compiles (runconfig.compile) by itself"
UPDATES = "run() makes the update: backward, clipping, optimizer, schedule"
REPORTS = "only what is reported depends on it; run() reports by itself"
OTHERWISE = "it runs only with settings other than the script's defaults"
TIMES = "run() measures the time"
EPOCHS = "runconfig.num_epochs"
BATCHES = "run() goes over the batches"
OPTIMIZER = "the section optimizer of params.yaml"
SCHEDULE = "optimizer.learning_rate of params.yaml"
SAME_OBJECT = "another name for the same object"
PIECES = "its statements, which are placed one by one"
DRAWN = "get_train_dataloader() of data.py; what it draws at random comes from the loader's own stream"
# What run() does for the script, as the script did it: a report need not tell it as left out.
TAKEN_OVER = (
    SEEDS, PLACES, MODES, ARGUMENTS, UPDATES, EPOCHS, BATCHES, OPTIMIZER, SCHEDULE, SAME_OBJECT, PIECES, DRAWN, "nothing", "a text", "run()",
)  # fmt: skip

_LOGGING_METHODS = frozenset(
    [
        "info",
        "debug",
        "warning",
        "error",
        "critical",
        "exception",
        "log",
        "add_scalar",
        "add_scalars",
        "add_graph",
        "add_histogram",
        "add_image",
        "add_figure",
        "add_text",
        "add_hparams",
        "add_embedding",
        "set_description",
        "set_postfix",
        "set_postfix_str",
        "set_description_str",
        "log_metrics",
        "flush",
        "write_line",
    ]
)
_LOGGING_MODULES = (
    "logging.", "wandb", "mlflow", "tqdm", "neptune", "comet_ml", "warnings.", "pprint", "rich.", "tensorboardX",
    "torch.utils.tensorboard", "torchsummary", "torchinfo", "sys.stdout", "sys.stderr", "matplotlib", "torch.set_printoptions",
)  # fmt: skip
_SEEDS = (
    "torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "numpy.random.seed", "random.seed", "torch.seed",
    "torch.use_deterministic_algorithms", "torch.random.manual_seed", "lightning.seed_everything",
)  # fmt: skip
_SAVES = (
    "torch.save",
    "os.makedirs",
    "os.mkdir",
    "os.remove",
    "shutil.rmtree",
    "shutil.copy",
    "shutil.copyfile",
    "os.path.exists",
)
_TIMES = ("time.time", "time.perf_counter", "datetime.datetime.now", "time.monotonic", "time.process_time")


def is_seed(line: Line) -> bool:
    node = line.node
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and (line.frame.unit.names.resolve(node.value.func) or "") in _SEEDS
    )


class Dissolver:
    """Says of a statement what in run() does its work; None where nothing does."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy, self.program = anatomy, anatomy.program
        self._asked: set[ast.AST] = set()
        self._before = [line for line in anatomy.setup if line not in anatomy.setup_of_epoch]
        self._rounds = [*anatomy.step, *(anatomy.epoch_loop.body if anatomy.epoch_loop else [])]

    def why(self, item: Line | Header | Loop) -> str | None:
        if isinstance(item, Header):
            return self._of_header(item)
        if isinstance(item, Line) and self.loads_again(item):
            return None
        if isinstance(item, Loop) or item.target is not None:
            return None
        return self.of(item.node, item.frame)

    def loads_again(self, line: Line) -> bool:
        """Whether weights come back in the course of training."""
        return line not in self._before and loads_checkpoint(line.node)

    def of(self, node: ast.stmt, frame: Frame) -> str | None:
        match node:
            case ast.Pass():
                return "nothing"
            case ast.Expr(value=ast.Constant()):
                return "a text"
            case ast.Expr(value=ast.Call() as call):
                return self._of_call(call, frame)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                return self._of_assignment(node, frame)
            case ast.If():
                return self._of_if(node, frame)
            case ast.With() | ast.For() | ast.While() | ast.Try():
                return self._of_block(node, frame)
            case ast.Delete() | ast.Global() | ast.Assert():
                return REPORTS
        return None

    def _of_header(self, item: Header) -> str | None:
        node = item.node
        if isinstance(node, ast.Try):
            goes_on = [
                h
                for h in node.handlers
                if "Interrupt" not in ast.dump(h.type or node) and not isinstance(h.body[-1], ast.Raise)
            ]
            return (
                "run() saves and ends cleanly on an interrupt"
                if item not in self._rounds or not goes_on
                else None
            )
        if isinstance(node, ast.If):
            is_met = item not in self._rounds or self.anatomy.values.try_evaluate(node.test, item.frame)
            return "run.py is called to train: --mode train" if is_met else None
        if isinstance(node, ast.With):
            names = [
                item.frame.unit.names.resolve(getattr(i.context_expr, "func", i.context_expr)) or ""
                for i in node.items
            ]
            if all(
                "anomaly" in n or n.startswith("torch.enable_grad") or "set_grad_enabled" in n for n in names
            ):
                return UPDATES
            if all(n.startswith(_LOGGING_MODULES) for n in names):
                return LOGS
        return None

    def _of_call(self, call: ast.Call, frame: Frame) -> str | None:
        dotted = frame.unit.names.resolve(call.func) or ""
        func = call.func
        if dotted in _SEEDS:
            return SEEDS
        if dotted in _SAVES:
            return SAVES
        if dotted.startswith("torch.nn.utils.clip_grad"):
            return UPDATES
        if dotted.startswith("sys.path."):
            return "modules of the project are copied beside run.py"
        if dotted.startswith(
            ("torch.cuda.", "torch.backends.", "gc.", "torch.set_num_threads", "torch.distributed.")
        ):
            return PLACES
        if dotted.startswith(_LOGGING_MODULES):
            return LOGS
        if isinstance(func, ast.Attribute) and func.attr == "step" and self._is_scheduler(func.value, frame):
            return UPDATES  # before the look into a method of the project's own scheduler
        called = self.program.callee(call, frame)
        if called is not None and not self.program.trains(call, frame):
            return self._of_function(called[1], self.program.module_frame(called[0]))
        if isinstance(func, ast.Name):
            return LOGS if func.id in ("print", "display", "input") and not dotted else None
        if not isinstance(func, ast.Attribute):
            return None
        receiver = self.program.reference(func.value, frame)
        kind = kind_of(self.anatomy, receiver) if isinstance(receiver, Var) else ""
        if receiver == self.anatomy.model:
            if func.attr in ("train", "eval"):
                return MODES
            if func.attr in ("to", "cuda", "share_memory"):
                return PLACES
            if func.attr in ("zero_grad",):
                return UPDATES
            if func.attr in ("compile",):
                return DISTRIBUTES
        if is_optimizer(kind) or is_scheduler(kind) or kind.startswith("torch.amp."):
            if func.attr in ("zero_grad", "step", "update", "unscale_"):
                return UPDATES
            if func.attr == "load_state_dict":
                return RESUMES
        if func.attr in ("train", "eval") and not call.args and not call.keywords:
            return MODES  # of a part of the model, or of a loss
        if func.attr == "set_epoch":
            return "run() shuffles anew each epoch"
        if func.attr == "mkdir":
            return SAVES
        if kind.startswith(_LOGGING_MODULES) or func.attr in _LOGGING_METHODS:
            return LOGS
        if made_by(func.value, frame).startswith(_LOGGING_MODULES):  # logging.getLogger().addHandler(...)
            return LOGS
        root: ast.expr = func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        owner = self.program.reference(root, frame)
        if isinstance(owner, Var) and kind_of(self.anatomy, owner).startswith(_LOGGING_MODULES):
            return LOGS
        return None

    def _is_scheduler(self, node: ast.expr, frame: Frame) -> bool:
        return (
            self.anatomy.scheduler is not None
            and self.program.reference(node, frame) == self.anatomy.scheduler
        )

    def _of_function(self, function: ast.AST, frame: Frame) -> str | None:
        """A function of the script that only seeds, prints or saves."""
        if function in self._asked:
            return None
        self._asked.add(function)
        try:
            calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
            names = [frame.unit.names.resolve(c.func) or "" for c in calls]
            if "torch.save" in names:
                return SAVES
            body = [s for s in getattr(function, "body", []) if not isinstance(s, ast.Return)]
            reasons = [self.of(s, frame) for s in body]
            return next((r for r in reasons if r and r != "a text"), None) if all(reasons) else None
        finally:
            self._asked.discard(function)

    def _of_assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, frame: Frame) -> str | None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        refs = [self.program.reference(t, frame) for t in targets]
        if all(ref == self.anatomy.optimizer for ref in refs):
            return OPTIMIZER
        if all(ref == self.anatomy.scheduler for ref in refs) and self.anatomy.scheduler is not None:
            return SCHEDULE
        if all(isinstance(ref, Var) and ref in self.anatomy.devices for ref in refs):
            return PLACES
        if (
            value is not None
            and all(
                is_device(self.anatomy, t, frame) for t in targets if isinstance(t, (ast.Name, ast.Attribute))
            )
            and is_device(self.anatomy, value, frame)
        ):
            return PLACES
        dotted = made_by(value, frame)
        if dotted.startswith(_LOGGING_MODULES):
            return LOGS
        if dotted == "torch.amp.GradScaler":
            return "runconfig.precision and optimizer.loss_scaling_factor"
        if dotted in _TIMES:
            return TIMES
        if isinstance(targets[0], ast.Attribute):
            text = frame.unit.names.resolve(targets[0]) or ""
            if text.startswith(("torch.backends.", "torch.cuda.")):
                return PLACES
            if isinstance(targets[0].value, ast.Attribute) and targets[0].value.attr in (
                "cudnn",
                "backends",
                "environ",
            ):
                return PLACES
            if is_device(self.anatomy, targets[0], frame):
                return PLACES
        if (
            isinstance(targets[0], ast.Subscript)
            and (frame.unit.names.resolve(targets[0].value) or "") == "os.environ"
        ):
            return PLACES
        if all(ref == self.anatomy.model for ref in refs) and isinstance(value, ast.Call):
            name = frame.unit.names.resolve(value.func) or ""
            if name == "torch.compile" or name.startswith("torch.nn.parallel.") or "DataParallel" in name:
                return DISTRIBUTES
            if isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda", "train", "eval"):
                inner = self.program.reference(value.func.value, frame)
                if inner == self.anatomy.model:
                    return PLACES if value.func.attr in ("to", "cuda") else MODES
        return None

    def _of_if(self, node: ast.If, frame: Frame) -> str | None:
        if loads_checkpoint(node):
            return RESUMES
        try:
            taken = self.anatomy.values.evaluate(node.test, frame)
        except UnknownError:  # both branches count
            taken = None
        branches = [*node.body, *node.orelse] if taken is None else (node.body if taken else node.orelse)
        if taken is not None and not taken and not node.orelse:
            # What stands here runs only with settings other than the defaults.
            everything = [
                OTHERWISE if isinstance(s, (ast.Break, ast.Continue)) else self.of(s, frame)
                for s in node.body
            ]
            if all(everything):
                return everything[0]
            return PLACES if _mentions_cuda(node) else None
        reasons = [self.of(s, frame) for s in branches]
        if all(reasons):
            return next((r for r in reasons if r), REPORTS)
        return None

    def _of_block(self, node: ast.With | ast.For | ast.While | ast.Try, frame: Frame) -> str | None:
        body = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
        body += [s for h in getattr(node, "handlers", []) for s in h.body]
        reasons = [self.of(s, frame) for s in body]
        return next((r for r in reasons if r), None) if reasons and all(reasons) else None


def _mentions_cuda(node: ast.AST) -> bool:
    words = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    words |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    words |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return any(
        isinstance(w, str)
        and ("cuda" in w or w in ("accel", "use_accel", "accelerator", "mps", "DataParallel"))
        for w in words
    )


def harmless(node: ast.AST) -> bool:
    """Whether leaving a statement out can change nothing but what is reported: it leads nowhere and returns nothing."""
    return not any(
        isinstance(n, (ast.Break, ast.Continue, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await))
        for n in ast.walk(node)
    ) and not (isinstance(node, (*FUNCTIONS, ast.ClassDef)))
