"""Finds who owns the training loop that a script starts: the script, a framework, a vendor's software, or nobody."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from portwright.port.imports import Imports, read_imports
from portwright.port.keras_layout.anatomy import _is_of_data as is_of_data
from portwright.port.names import split_reference
from portwright.port.project import Project, read_source
from portwright.port.rule import File
from portwright.port.source import UnreadableError
from portwright.port.tree import FUNCTIONS, MethodCall, asks_own_name, imported_tops, is_method_call, words


@dataclass(frozen=True)
class Owner:
    """Who calls backward() and step(); `name` is for messages."""

    name: str
    framework: str  # torch, tensorflow or jax
    signs: str = ""  # pattern of the dotted names whose use shows this owner
    package: str = ""  # of a vendor's software: its target runs this loop as it is
    is_ported: bool = False  # a style of `port` can port this loop
    is_run: bool = False  # portwright's run(), which trains on every target
    in_script: bool = False  # the loop is in the script, and backward() in it is the framework's


_TF = r"(?:tensorflow|tf_keras|keras|tensorflow_estimator|portwright\.tensorflow|cerebras|modelzoo)[\w.]*\."
SCRIPT = Owner("the script itself", "torch", is_ported=True)
KERAS_FIT = Owner("Keras fit()", "tensorflow", is_ported=True)
KERAS_STEP = Owner("Keras fit() with a train_step of its own", "tensorflow")
SESSION_LOOP = Owner("a loop over a TensorFlow session", "tensorflow")
OWNERS = (
    Owner("portwright.tensorflow's run()", "tensorflow", r"portwright\.tensorflow\.(?:\w+\.)*run", is_run=True),
    Owner(
        "portwright's run()", "torch", is_run=True,
        signs=r"(?:portwright\.(?:\w+\.)*|modelzoo\.common\.pytorch\.(?:\w+\.)*)run",
    ),
    Owner("PopTorch's executor", "torch", r"poptorch\.trainingModel", package="poptorch"),
    Owner("SambaFlow's session", "torch", r"sambaflow\.samba\.session\.(?:run|compile)", package="sambaflow"),
    Owner(
        "Cerebras's own PyTorch API", "torch", package="cerebras",
        signs=r"cerebras\.(?:pytorch\.(?:\w+\.)*(?:DataExecutor|trace|compile|backend)|modelzoo\.(?:\w+\.)*(?:Trainer|run|main))",
    ),
    Owner(
        "HuggingFace Trainer", "torch",
        r"(?:transformers|trl|sentence_transformers|setfit|optimum|adapters|unsloth)\.(?:\w+\.)*\w*Trainer",
    ),
    Owner(
        "Lightning's Trainer", "torch", r"(?:pytorch_lightning|lightning(?:\.pytorch)?)\.(?:\w+\.)*(?:Trainer|LightningCLI)"
    ),
    Owner(
        "Lightning Fabric", "torch", in_script=True,
        signs=r"(?:lightning|lightning_fabric|pytorch_lightning)\.(?:\w+\.)*(?:Fabric|LightningLite)",
    ),
    Owner("Accelerate", "torch", r"accelerate\.(?:\w+\.)*Accelerator", in_script=True),
    Owner(
        "Ignite's Engine", "torch", in_script=True,
        signs=r"ignite\.engine\.(?:\w+\.)*(?:Engine|create_supervised_trainer)",
    ),
    Owner("DeepSpeed", "torch", r"deepspeed\.(?:\w+\.)*(?:initialize|PipelineModule)", in_script=True),
    Owner("timm's loss scaler", "torch", r"timm\.utils\.(?:\w+\.)*(?:NativeScaler|ApexScaler)", in_script=True),
    Owner("Composer's Trainer", "torch", r"composer\.(?:\w+\.)*Trainer"),
    Owner("fastai's Learner", "torch", r"fastai\.(?:\w+\.)*(?:Learner|\w+_learner)"),
    Owner("skorch", "torch", r"skorch\.(?:\w+\.)*Neural\w+"),
    Owner("Catalyst's Runner", "torch", r"catalyst\.(?:\w+\.)*\w*Runner"),
    Owner("MMEngine's Runner", "torch", r"(?:mmengine|mmcv)\.(?:\w+\.)*\w*Runner"),
    Owner("Detectron2's Trainer", "torch", r"detectron2\.engine\.(?:\w+\.)*\w*Trainer"),
    Owner("Ultralytics", "torch", r"ultralytics\.(?:\w+\.)*YOLO\w*"),
    Owner(
        "a TensorFlow Estimator", "tensorflow",
        _TF + r"(?:\w*Estimator|train_and_evaluate|model_to_estimator|(?:DNN|Linear|BoostedTrees|Baseline)\w*)",
    ),
    Owner("a loop around GradientTape", "tensorflow", r"tensorflow\.(?:\w+\.)*GradientTape"),
    Owner("a loop around JAX's gradients", "jax", r"(?:jax|flax|haiku|equinox|optax)\.(?:\w+\.)*(?:grad|value_and_grad|filter_grad|filter_value_and_grad|apply_updates)"),
)  # fmt: skip
_COMPILED = [(owner, re.compile(owner.signs + r"\Z")) for owner in OWNERS if owner.signs]
_SESSIONS = re.compile(r"tensorflow\.(?:\w+\.)*(?:Session|InteractiveSession|MonitoredTrainingSession)\Z")
_KERAS_MODEL = re.compile(r"(?:tensorflow|tf_keras|keras)\.(?:\w+\.)*(?:Model|Sequential|Functional)\Z")
_IS_KERAS = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(?:tensorflow|tf_keras|keras)\b", re.MULTILINE)
_FITS = ("fit", "fit_generator", "train_on_batch")
_OWN_STEPS = ("train_step", "make_train_function")
_FIT_ONLY = {"epochs", "validation_data", "validation_split", "steps_per_epoch", "batch_size", "nb_epoch"}
_PLAIN_DECORATORS = words("torch functools typing contextlib abc numba tensorflow staticmethod property")


@dataclass(frozen=True)
class Seen:
    """An owner, and the line that shows it."""

    owner: Owner
    path: Path
    line: int


@dataclass
class Part:
    """What one definition, or one statement at module level, contains."""

    # the project's definitions that it uses
    leads_to: list[tuple[Path, ast.AST]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    fits: list[tuple[Seen, bool]] = field(default_factory=list)  # fit(), and whether surely of Keras
    sessions: list[Seen] = field(default_factory=list)
    methods: set[str] = field(default_factory=set)  # names of methods that it calls


class Reader:
    """The files of one project, each parsed once."""

    def __init__(self, root: Path) -> None:
        self.project = Project(root)
        self._files: dict[Path, File | None] = {}
        self._imports: dict[Path, Imports] = {}
        self._parts: dict[tuple[Path, ast.AST], Part] = {}

    def file(self, path: Path) -> File | None:
        """The parsed file; None if it cannot be parsed, which its own check reports."""
        if path not in self._files:
            try:
                self._files[path] = File(read_source(path), self.project, frozenset())
            except UnreadableError:
                self._files[path] = None
        return self._files[path]

    def imports(self, path: Path) -> Imports:
        if path not in self._imports:
            file = self.file(path)
            self._imports[path] = (
                Imports() if file is None else read_imports(path, file.tree, file.names, self.project)
            )
        return self._imports[path]

    def part(self, path: Path, root: ast.AST) -> Part:
        if (path, root) not in self._parts:
            file = self.file(path)
            assert file is not None
            self._parts[path, root] = self._read_part(path, file, root)
        return self._parts[path, root]

    def _read_part(self, path: Path, file: File, root: ast.AST) -> Part:
        part = Part()
        signs: dict[Owner, tuple[bool, int]] = {}
        backward = set(file.flow.backward_calls)
        for node in ast.walk(root):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                dotted = file.resolve(node)
                if dotted is not None and "::" in dotted:
                    part.leads_to += self._definitions(file, node, dotted)
                elif dotted is not None:
                    owner = next((owner for owner, pattern in _COMPILED if pattern.match(dotted)), None)
                    is_called = file.tree.parent_call(node) is not None
                    if owner is not None:  # a call is a better place than an annotation
                        place = (not is_called, node.lineno)
                        signs[owner] = min(place, signs.get(owner, place))
                    if is_called and _SESSIONS.match(dotted):
                        part.sessions.append(Seen(SESSION_LOOP, path, node.lineno))
            elif is_method_call(node):
                self._read_method(path, file, part, node, node in backward)
            elif isinstance(node, ast.ClassDef):
                steps = [s for s in node.body if isinstance(s, FUNCTIONS) and s.name in _OWN_STEPS]
                if steps and any(_is_keras_model(file, base) for base in file.names.bases_of(node)):
                    part.seen.append(Seen(KERAS_STEP, path, steps[0].lineno))
        part.seen += [Seen(owner, path, line) for owner, (_, line) in signs.items()]
        return part

    @staticmethod
    def _read_method(path: Path, file: File, part: Part, call: MethodCall, is_backward: bool) -> None:
        method = call.func
        part.methods.add(method.attr)
        if is_backward:
            info = file.tree.class_of(call)
            bases = file.names.bases_of(info.node) if info is not None else []
            # else the Trainer owns the loop
            if not any(base.endswith(".LightningModule") for base in bases):
                loops = file.tree.loops_of(call)
                part.seen.append(Seen(SCRIPT, path, (loops[0] if loops else call).lineno))  # type: ignore[attr-defined]
        elif method.attr in _FITS and file.resolve(method) is None and not is_of_data(call):
            is_keras = method.attr != "fit" or any(k.arg in _FIT_ONLY for k in call.keywords)
            part.fits.append((Seen(KERAS_FIT, path, call.lineno), is_keras))

    def _definitions(self, file: File, node: ast.expr, reference: str) -> Iterator[tuple[Path, ast.AST]]:
        path, name = split_reference(reference)
        other = self.file(path)
        if other is None:
            return
        if name:
            bound = other.tree.scope.bindings.get(name, ())
            yield from ((path, at) for b in bound if (at := other.tree.statement_of(b.node)) is not None)
            return
        parent = file.tree.parents.get(node)
        if isinstance(parent, ast.Attribute) and (
            file.resolve(parent) is not None or parent.attr in ("__version__", "__file__", "__name__")
        ):
            return
        # The module itself: which of its functions are used is unknown, so all count.
        yield from ((path, s) for s in other.tree.module.body if isinstance(s, (*FUNCTIONS, ast.ClassDef)))


class Reach:
    """The code that a script can run, found by the names that it uses; a class counts as a whole.

    If that finds no loop, module-level code of the imported files is added, such as that which fills a registry.
    """

    def __init__(self, reader: Reader, entry: Path, files: Sequence[Path], deep: bool = True) -> None:
        self.reader, self.entry = reader, entry
        self.files = {path: file for path in files if (file := reader.file(path)) is not None}
        self.parts: dict[tuple[Path, ast.AST], Part] = {}
        for path in self.files:  # the entry first
            if path == entry or (deep and not self.has_loop):
                self._follow([(path, each) for each in self._at_once(path, self.files[path])])

    @property
    def has_loop(self) -> bool:
        return any(part.seen or part.fits or part.sessions for part in self.parts.values())

    def _follow(self, waiting: list[tuple[Path, ast.AST]]) -> None:
        while waiting:
            where = waiting.pop()
            if where not in self.parts and where[0] in self.files:
                self.parts[where] = self.reader.part(*where)
                waiting += self.parts[where].leads_to

    def nodes(self, path: Path) -> Iterator[ast.AST]:
        for where, root in self.parts:
            if where == path:
                yield from ast.walk(root)

    def _at_once(self, path: Path, file: File) -> Iterator[ast.AST]:
        """Code that runs when a file is loaded; code under `if __name__ == "__main__"` counts only in the entry."""
        waiting: list[ast.stmt] = list(file.tree.module.body)
        while waiting:
            statement = waiting.pop()
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                if any(_may_call(file, decorator) for decorator in statement.decorator_list):
                    yield statement
            elif isinstance(statement, ast.If) and asks_own_name(statement.test):
                if path == self.entry:
                    waiting += statement.body
            elif isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from (item.context_expr for item in getattr(statement, "items", []))
                yield from [statement.test] if isinstance(statement, ast.If) else []
                waiting += (
                    statement.body + getattr(statement, "orelse", []) + getattr(statement, "finalbody", [])
                )
                waiting += [each for handler in getattr(statement, "handlers", []) for each in handler.body]
            else:
                yield statement


def find_owners(reach: Reach) -> list[Seen]:
    """The owners of training loops in the reached code, each once, at its first place."""
    parts = list(reach.parts.values())
    found = [seen for part in parts for seen in part.seen]
    methods = {method for part in parts for method in part.methods}
    if any(_IS_KERAS.search(file.source.data) for file in reach.files.values()):
        found += [seen for part in parts for seen, is_keras in part.fits if is_keras or "compile" in methods]
        if methods & {"minimize", "apply_gradients"}:
            found += [seen for part in parts for seen in part.sessions]
    if any(s.owner.in_script or _is_loaded_always(reach, s.owner.package) for s in found):
        found = [seen for seen in found if seen.owner is not SCRIPT]  # its backward() is the framework's
    if any(seen.owner is KERAS_STEP for seen in found):  # a tape in its train_step is no loop
        found = [
            seen for seen in found if seen.owner.name not in (KERAS_FIT.name, "a loop around GradientTape")
        ]
    if any(seen.owner.framework == "tensorflow" and "Estimator" in seen.owner.name for seen in found):
        found = [seen for seen in found if seen.owner is not SESSION_LOOP]
    order = {path: number for number, path in enumerate(reach.files)}
    first: dict[str, Seen] = {}
    for seen in sorted(found, key=lambda each: (order[each.path], each.line)):
        first.setdefault(seen.owner.name, seen)
    return list(first.values())


def _is_loaded_always(reach: Reach, package: str) -> bool:
    """Whether a vendor's package is imported unconditionally; else its loop is only a branch beside the script's own."""
    return package != "" and any(
        package in imported_tops(node) and isinstance(file.tree.parents[node], ast.Module)
        for file in reach.files.values()
        for node in file.tree.all(ast.Import, ast.ImportFrom)
    )


def _is_keras_model(file: File, reference: str, hops: int = 8) -> bool:
    bases = file.names.base_names(reference) if "::" in reference and hops > 0 else []
    return bool(_KERAS_MODEL.match(reference)) or any(_is_keras_model(file, base, hops - 1) for base in bases)


def _may_call(file: File, decorator: ast.expr) -> bool:
    """Whether a decorator may register the function for a later call, as registries and commands do."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    dotted = file.resolve(target) or str(getattr(target, "id", ""))
    return dotted.partition(".")[0] not in _PLAIN_DECORATORS


def owner_of_name(name: str) -> Owner:
    return next(
        owner for owner in (SCRIPT, KERAS_FIT, KERAS_STEP, SESSION_LOOP, *OWNERS) if owner.name == name
    )
