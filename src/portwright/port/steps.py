"""Finds the code of a file that runs in a training step: loops around backward(), and what forward() calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from portwright.port.callers import MOST_HOPS, functions_called_from_steps
from portwright.port.kinds import STEP_METHODS, Kinds
from portwright.port.names import Names
from portwright.port.project import Project, read_source
from portwright.port.source import UnreadableError
from portwright.port.tree import (
    FUNCTIONS,
    ClassInfo,
    FunctionNode,
    MethodCall,
    Tree,
    is_method_call,
    is_name,
    last_name,
)


class Flow(Kinds):
    """The kinds of a file's values, its training loops, and the functions that forward() calls, found when a rule asks."""

    def __init__(self, tree: Tree, names: Names) -> None:
        super().__init__(tree, names)
        self._called_from: dict[int, set[ast.AST]] = {}

    @cached_property
    def module_classes(self) -> list[ClassInfo]:
        return [info for info in self.tree.classes.values() if self.names.is_module_node(info.node)]

    @cached_property
    def forward_functions(self) -> set[ast.AST]:
        """Functions of this file that forward() calls, directly or not, with forward() itself."""
        return self._reach([
            (info, info.methods[name])
            for info in self.module_classes
            for name in STEP_METHODS
            if name in info.methods
        ])  # fmt: skip

    def _reach(self, start: Iterable[tuple[ClassInfo | None, ast.AST]]) -> set[ast.AST]:
        """These functions, and those of this file that they call, directly or not."""
        reached: set[ast.AST] = set()
        waiting = list(start)
        while waiting:
            info, function = waiting.pop()
            if function not in reached:
                reached.add(function)
                waiting += self._called(info, function)
        return reached

    @cached_property
    def backward_calls(self) -> list[MethodCall]:
        """Calls that start a backward pass, in the order of the text."""
        found = []
        for call in self.tree.all(ast.Call):
            if not is_method_call(call, "backward"):
                continue
            if self.names.resolve(call.func) not in (None, "torch.autograd.backward"):
                continue
            receiver, function = call.func.value, self.tree.function_of(call)
            is_of_autograd = function is not None and any(a.arg == "ctx" for a in function.args.args[:1])
            is_inherited = isinstance(receiver, ast.Call) and is_name(receiver.func, "super")
            if not (is_of_autograd or is_inherited or is_name(receiver, "ctx") or is_name(receiver, "self")):
                found.append(call)
        return sorted(found, key=lambda c: (c.lineno, c.col_offset))

    @cached_property
    def step_regions(self) -> dict[ast.AST, list[MethodCall]]:
        """Each loop whose iteration is one update, or function that makes one, with its backward calls.

        Such a loop is the innermost one around backward() that also calls step().
        """
        regions: dict[ast.AST, list[MethodCall]] = {}
        for call in self.backward_calls:
            loops = self.tree.loops_of(call)
            own = (loop for loop in loops if any(is_method_call(node, "step") for node in ast.walk(loop)))
            region = next(own, loops[0] if loops else self.tree.function_of(call))
            if region is not None:  # backward() at the top level without a loop is no step
                regions.setdefault(region, []).append(call)
        return regions

    @cached_property
    def step_functions(self) -> set[ast.AST]:
        """Functions of this file that each training step calls, directly or not."""
        called: list[tuple[ClassInfo | None, ast.AST]] = []
        for region in self.step_regions:
            for node in ast.walk(region):
                if isinstance(node, ast.Call) and not self.is_gated(node, region):
                    function = self._local_function(node)
                    if function is not None and not self._is_without_gradients(function):
                        is_method = isinstance(node.func, ast.Attribute)
                        called.append((self.tree.class_of(node) if is_method else None, function))
        return self._reach(called)

    def in_training_step(self, node: ast.AST) -> bool:
        regions = self.step_regions
        return (
            bool(regions)
            and not self.is_without_gradients(node)
            and any(
                (a in regions and not _is_outside_of_loop(a, node, self.tree)) or a in self.step_functions
                for a in self.tree.ancestors(node)
            )
        )

    def in_forward(self, node: ast.AST) -> bool:
        return bool(self.forward_functions) and any(
            a in self.forward_functions for a in self.tree.ancestors(node)
        )

    def in_step(self, node: ast.AST) -> bool:
        return self.in_forward(node) or self.in_training_step(node) or self.is_called_from_step(node)

    def is_called_from_step(self, node: ast.AST, hops: int = MOST_HOPS) -> bool:
        """Whether a node is in a function that a step in another file calls."""
        functions = self._functions_called_from(hops)
        is_called = bool(functions) and any(a in functions for a in self.tree.ancestors(node))
        return is_called and not self.is_without_gradients(node)

    def calls_to_other_files(self, hops: int) -> set[str]:
        """The functions in other files of the project that steps of this file call, as `file::name`."""
        found = set()
        for call in self.tree.all(ast.Call):
            reference = self.names.resolve(call.func)
            if reference is None or "::" not in reference or reference in found:
                continue
            if (
                self.in_forward(call)
                or (self.in_training_step(call) and not self.is_gated(call, self.region_of(call)))
                or (hops > 0 and self.is_called_from_step(call, hops))
            ):
                found.add(reference)
        return found

    def _functions_called_from(self, hops: int) -> set[ast.AST]:
        if hops not in self._called_from:
            defined = {f.name: f for f in self.tree.module.body if isinstance(f, FUNCTIONS)}
            project, path = self.names.project, self.names.path
            names = defined and functions_called_from_steps(
                project, path, hops, lambda importer: _calls_to_other_files(project, importer, hops - 1)
            )
            called = [defined[name] for name in names if name in defined]
            self._called_from[hops] = self._reach(
                (None, function) for function in called if not self._is_without_gradients(function)
            )
        return self._called_from[hops]

    def region_of(self, node: ast.AST) -> ast.AST | None:
        return next((a for a in self.tree.ancestors(node) if a in self.step_regions), None)

    def is_gated(self, node: ast.AST, region: ast.AST | None = None) -> bool:
        """Whether a node runs only every so many steps, under a condition such as `if step % 100 == 0`."""
        around = takewhile(
            lambda a: a is not region and not isinstance(a, FUNCTIONS), self.tree.ancestors(node)
        )
        return any(
            isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
            for outer in around
            if isinstance(outer, ast.If)
            for part in ast.walk(outer.test)
        )

    def needs_of_read(self, call: ast.Call) -> tuple[str, ...]:
        """The need that a read breaks: a read only every so many steps, outside forward(), breaks the weaker one."""
        seldom = self.is_gated(call) and not self.in_forward(call)
        return ("no_rare_host_reads",) if seldom else ("no_host_reads",)

    def is_running_sum(self, call: ast.Call) -> bool:
        """Whether a read is only added to a sum: `total += loss.item() * n`."""
        outer = next((a for a in self.tree.ancestors(call) if not isinstance(a, ast.BinOp)), None)
        return isinstance(outer, ast.AugAssign) and isinstance(outer.op, ast.Add)

    def is_without_gradients(self, node: ast.AST) -> bool:
        """Whether a node is under no_grad or inference_mode, as evaluation is."""
        return any(map(self._is_without_gradients, self.tree.ancestors(node)))

    def _is_without_gradients(self, node: ast.AST) -> bool:
        """Whether a `with` statement or a function's decorator turns gradients off."""
        if isinstance(node, (ast.With, ast.AsyncWith)):
            calls = (item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call))
            return any(map(self._is_no_grad, calls))
        return isinstance(node, FUNCTIONS) and any(map(self._is_no_grad, node.decorator_list))

    def _is_no_grad(self, node: ast.expr) -> bool:
        dotted = self.names.resolve(node.func if isinstance(node, ast.Call) else node)
        return dotted in ("torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad")

    def _called(self, info: ClassInfo | None, function: ast.AST) -> list[tuple[ClassInfo | None, ast.AST]]:
        """Functions of this file that a function calls or passes on."""
        found: list[tuple[ClassInfo | None, ast.AST]] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and is_name(node.value, "self") and info is not None:
                method = info.methods.get(node.attr)
                if method is not None and self.tree.parent_call(node):
                    found.append((info, method))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                local = self._named_function(node)
                if local is not None and not self._is_without_gradients(local):
                    found.append((None, local))
                made = self._named_class(node)
                if made is not None and "__init__" in made.methods:
                    found.append((made, made.methods["__init__"]))
        return found

    def _local_function(self, call: ast.Call) -> FunctionNode | None:
        if isinstance(call.func, ast.Name):
            return self._named_function(call.func)
        own = is_method_call(call) and is_name(call.func.value, "self")
        info = self.tree.class_of(call) if own else None
        return None if info is None else info.methods.get(last_name(call.func))

    def _named_class(self, name: ast.Name) -> ClassInfo | None:
        """The class of this file that a name instantiates, if it is no nn.Module."""
        node = self.tree.only_definition(name) if self.tree.parent_call(name) else None
        is_own = isinstance(node, ast.ClassDef) and not self.names.is_module_node(node)
        return self.tree.classes[node] if is_own else None  # type: ignore[index]

    def _named_function(self, name: ast.Name) -> FunctionNode | None:
        node = self.tree.only_definition(name)
        return node if isinstance(node, FUNCTIONS) else None


def _calls_to_other_files(project: Project, path: Path, hops: int) -> set[str]:
    """The functions that steps of another file call outside it; empty if it cannot be read."""
    try:
        tree = Tree((project.overlay.get(path) or read_source(path)).parse())
    except UnreadableError:
        return set()
    return Flow(tree, Names(path, tree, project)).calls_to_other_files(hops)


def _is_outside_of_loop(region: ast.AST, node: ast.AST, tree: Tree) -> bool:
    """Whether a node is in a loop's iterable or else, which are not part of an iteration."""
    return isinstance(region, (ast.For, ast.AsyncFor)) and any(
        tree.is_within(node, part) for part in (region.iter, *region.orelse)
    )
