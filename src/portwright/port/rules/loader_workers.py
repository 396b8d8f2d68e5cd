from __future__ import annotations

import ast

from portwright.port.rewrite import argument, is_constant
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import Binding, last_name


def _unpicklable(file: File, call: ast.Call) -> str | None:
    """An argument of the loader that pickle refuses, as text."""
    for node in ast.walk(call):
        if isinstance(node, ast.Lambda):
            return "a lambda"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for binding in _inner_bindings(file, node):
                made = binding.value.func if isinstance(binding.value, ast.Call) else None
                if isinstance(binding.node, (ast.FunctionDef, ast.ClassDef)):
                    return f"'{node.id}', which is defined inside a function"
                if any(isinstance(b.node, ast.ClassDef) for b in _inner_bindings(file, made)[:1]):
                    return f"'{last_name(made)}', which is defined inside a function"
    return None


def _inner_bindings(file: File, node: ast.AST | None) -> list[Binding]:
    """The bindings of a name that is not the module's own."""
    found = file.tree.scope_of(node).lookup(node.id) if isinstance(node, ast.Name) else None
    return found[1] if found and found[0] is not file.tree.scope else []


class LoaderWorkers(Rule):
    """Finds loaders with worker processes whose dataset cannot be sent to one.

    ## Why
    The vendors' loaders start processes of their own and send them the dataset. Lambdas, and classes and functions
    defined inside a function, cannot be sent.

    ## Example
    ```python
    from torch.utils.data import DataLoader

    def make():
        class Squares:
            def __getitem__(self, i):
                return i * i

        return DataLoader(Squares(), batch_size=8, num_workers=2, drop_last=True)
    ```

    ## Instead
    ```python
    from torch.utils.data import DataLoader

    class Squares:
        def __getitem__(self, i):
            return i * i

    def make():
        return DataLoader(Squares(), batch_size=8, num_workers=2, drop_last=True)
    ```

    ## Safety
    Manual: what has to move is your dataset.
    """

    code = "PW103"
    needs = ("picklable_dataset",)
    words = ("num_workers",)
    cure = "Make the dataset one that can be pickled: no lambdas, and no classes or functions that are defined inside a function."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.utils.data.DataLoader"):
            workers = argument(call, 5, "num_workers")
            if workers is None or is_constant(workers, 0):
                continue
            reason = _unpicklable(file, call)
            if reason is not None:
                yield self.report(file, call, f"worker processes cannot receive {reason}")
