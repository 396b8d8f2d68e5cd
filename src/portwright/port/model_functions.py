"""Finds the functions of a TensorFlow file that build the model, and those of the input pipeline."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from portwright.port.rule import File
from portwright.port.tensorflow_names import tensorflow_of
from portwright.port.tree import FUNCTIONS, Binding, ClassInfo, FunctionNode

_ESTIMATORS = ("Estimator", "TPUEstimator", "CerebrasEstimator")
_LAYER_METHODS = ("call", "build", "build_model", "build_total_loss", "__call__")
_LAYER_BASES = ("keras.Model", "keras.layers.Layer", "keras.models.Model", "keras.Sequential", "layers.Layer")
# Functions that only models call; input pipelines do arithmetic too.
_BUILDS = (
    "get_variable", "matmul", "einsum", "layers.", "keras.layers.", "nn.", "contrib.layers.", "variable_scope",
    "linalg.matmul",
)  # fmt: skip
_TRANSFORMS = (
    "map",
    "interleave",
    "flat_map",
    "filter",
    "apply",
    "map_and_batch",
    "from_generator",
    "group_by_window",
)


class ModelFunctions:
    """The model functions of a file, the functions that they call, and the input functions."""

    def __init__(self, file: File) -> None:
        self._file = file

    @cached_property
    def model_fns(self) -> set[ast.AST]:
        """The model_fn functions of Estimators, recognised by use, name or parameters."""
        found: set[ast.AST] = set()
        for call in self._file.tree.all(ast.Call):
            if _last_name(call.func) in _ESTIMATORS:
                given = next((k.value for k in call.keywords if k.arg == "model_fn"), None)
                given = given if given is not None else (call.args[0] if call.args else None)
                if isinstance(given, ast.Name):
                    found |= {b.node for b in self._bindings(given) if isinstance(b.node, FUNCTIONS)}
        for function in self._file.tree.all(ast.FunctionDef):
            names = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
            if (
                {"features", "labels", "mode"} <= names
                or function.name == "model_fn"
                or (function.name.endswith("model_fn") and "features" in names)
            ):
                found.add(function)
        return found

    @cached_property
    def reached(self) -> set[ast.AST]:
        """The functions that build the model: model functions, what they call, and others that make layers."""
        tree, flow = self._file.tree, self._file.flow
        waiting: list[tuple[ClassInfo | None, ast.AST]] = [(tree.class_of(f), f) for f in self.model_fns]
        for info in tree.classes.values():
            if any(_is_layer(self._file, base) for base in info.node.bases):
                waiting += [(info, info.methods[name]) for name in _LAYER_METHODS if name in info.methods]
        for call, _ in tensorflow_of(self._file).calls(*_BUILDS):
            function = tree.function_of(call)
            if function is not None and not self._is_for_input(function):
                waiting.append((tree.class_of(function), function))
        return flow._reach(waiting) - self.input_fns

    @cached_property
    def input_fns(self) -> set[ast.AST]:
        """Functions that make datasets, or that datasets apply to their elements."""
        functions: list[FunctionNode] = [
            *self._file.tree.all(ast.FunctionDef),
            *self._file.tree.all(ast.Lambda),
        ]
        functions += self._file.tree.all(ast.AsyncFunctionDef)
        return {f for f in functions if self._is_for_input(f)}

    def in_model(self, node: ast.AST) -> bool:
        """Whether a node is in a function that builds the model."""
        around = self._functions(node)
        if any(f in self.input_fns for f in around):
            return False
        return any(f in self.reached for f in around)

    def in_model_fn(self, node: ast.AST) -> bool:
        """Whether a node is in a model_fn, or in a function of this file that one calls."""
        around = self._functions(node)
        if any(f in self.input_fns for f in around):
            return False
        if any(f in self.model_fns for f in around):
            return True
        return any(f in self._from_model_fns for f in around)

    @cached_property
    def _from_model_fns(self) -> set[ast.AST]:
        tree = self._file.tree
        return self._file.flow._reach([(tree.class_of(f), f) for f in self.model_fns])

    def is_estimator(self, node: ast.expr) -> bool:
        """Whether an expression makes an Estimator, or is a variable that holds one."""
        if isinstance(node, ast.Name):
            return any(
                isinstance(b.value, ast.Call) and self.is_estimator(b.value) for b in self._bindings(node)
            )
        return isinstance(node, ast.Call) and _last_name(node.func) in _ESTIMATORS

    def _functions(self, node: ast.AST) -> list[ast.AST]:
        return [a for a in self._file.tree.ancestors(node) if isinstance(a, (*FUNCTIONS, ast.Lambda))]

    def _is_for_input(self, function: FunctionNode) -> bool:
        if "input_fn" in getattr(function, "name", ""):
            return True
        return function in self._applied

    @cached_property
    def _applied(self) -> set[ast.AST]:
        """Functions passed to map() and similar methods of datasets."""
        found: set[ast.AST] = set()
        for call in self._file.tree.all(ast.Call):
            if _last_name(call.func) in _TRANSFORMS:
                for argument in (*call.args, *(k.value for k in call.keywords)):
                    for part in ast.walk(argument):
                        if isinstance(part, ast.Lambda):
                            found.add(part)
                            found |= set(self._called(part))
                        elif isinstance(part, ast.Name):
                            found |= {b.node for b in self._bindings(part) if isinstance(b.node, FUNCTIONS)}
        return found

    def _called(self, function: ast.Lambda) -> Iterator[ast.AST]:
        for part in ast.walk(function.body):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                yield from (b.node for b in self._bindings(part.func) if isinstance(b.node, FUNCTIONS))

    def _bindings(self, name: ast.Name) -> list[Binding]:
        found = self._file.tree.scope_of(name).lookup(name.id)
        return found[1] if found else []


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_layer(file: File, base: ast.expr) -> bool:
    dotted = file.resolve(base) or ""
    return dotted.endswith(_LAYER_BASES) or _last_name(base) in ("BaseLayer", "TFBaseModel", "Layer")


def functions_of(file: File) -> ModelFunctions:
    return file.once(ModelFunctions)
