"""Finds the functions of a TensorFlow file that build the model, and those of the input pipeline."""

from __future__ import annotations

import ast
from functools import cached_property

from portwright.port.rewrite import argument
from portwright.port.rule import File
from portwright.port.tensorflow_names import tensorflow_of
from portwright.port.tree import FUNCTIONS, ClassInfo, FunctionNode, last_name, words

_ESTIMATORS = ("Estimator", "TPUEstimator", "CerebrasEstimator")
_LAYER_METHODS = ("call", "build", "build_model", "build_total_loss", "__call__")
_LAYER_BASES = ("keras.Model", "keras.layers.Layer", "keras.models.Model", "keras.Sequential", "layers.Layer")
# Functions that only models call; input pipelines do arithmetic too.
_BUILDS = (
    "get_variable", "matmul", "einsum", "layers.", "keras.layers.", "nn.", "contrib.layers.", "variable_scope",
    "linalg.matmul",
)  # fmt: skip
_TRANSFORMS = words("map interleave flat_map filter apply map_and_batch from_generator group_by_window")


class ModelFunctions:
    """The model functions of a file, the functions that they call, and the input functions."""

    def __init__(self, file: File) -> None:
        self._file = file

    @cached_property
    def model_fns(self) -> set[ast.AST]:
        """The model_fn functions of Estimators, recognised by use, name or parameters."""
        found: set[ast.AST] = set()
        for call in self._file.tree.all(ast.Call):
            if last_name(call.func) in _ESTIMATORS:
                found |= self._functions_named(argument(call, 0, "model_fn"))
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
        functions = [*self._file.tree.all(*FUNCTIONS), *self._file.tree.all(ast.Lambda)]
        return {f for f in functions if self._is_for_input(f)}

    def in_model(self, node: ast.AST) -> bool:
        """Whether a node is in a function that builds the model."""
        around = set(self._file.tree.ancestors(node))
        return not around & self.input_fns and bool(around & self.reached)

    def in_model_fn(self, node: ast.AST) -> bool:
        """Whether a node is in a model_fn, or in a function of this file that one calls."""
        around = set(self._file.tree.ancestors(node))
        return not around & self.input_fns and bool(around & self._from_model_fns)

    @cached_property
    def _from_model_fns(self) -> set[ast.AST]:
        tree = self._file.tree
        return self._file.flow._reach([(tree.class_of(f), f) for f in self.model_fns])

    def is_estimator(self, node: ast.expr) -> bool:
        """Whether an expression makes an Estimator, or is a variable that holds one."""
        made = [node, *(b.value for b in self._file.tree.bindings(node))]
        return any(isinstance(call, ast.Call) and last_name(call.func) in _ESTIMATORS for call in made)

    def _is_for_input(self, function: FunctionNode) -> bool:
        return "input_fn" in getattr(function, "name", "") or function in self._applied

    @cached_property
    def _applied(self) -> set[ast.AST]:
        """Functions passed to map() and similar methods of datasets."""
        found: set[ast.AST] = set()
        for call in self._file.tree.all(ast.Call):
            if last_name(call.func) not in _TRANSFORMS:
                continue
            for given in (*call.args, *(k.value for k in call.keywords)):
                for part in ast.walk(given):
                    # What a lambda calls, and what is named, is among these names.
                    found |= {part} if isinstance(part, ast.Lambda) else self._functions_named(part)
        return found

    def _functions_named(self, node: ast.AST | None) -> set[ast.AST]:
        """The functions of this file that a name may mean."""
        return {b.node for b in self._file.tree.bindings(node) if isinstance(b.node, FUNCTIONS)}


def _is_layer(file: File, base: ast.expr) -> bool:
    dotted = file.resolve(base) or ""
    return dotted.endswith(_LAYER_BASES) or last_name(base) in ("BaseLayer", "TFBaseModel", "Layer")


def functions_of(file: File) -> ModelFunctions:
    return file.once(ModelFunctions)
