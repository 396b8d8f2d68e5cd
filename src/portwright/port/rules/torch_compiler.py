from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rewrite import unwrap
from portwright.port.rule import File, Rule
from portwright.port.spelling import torch_name


class TorchCompiler(Rule):
    """Takes out torch.compile and torch.jit.

    ## Why
    Both make code for a CPU or GPU, and hide the model from a tracer of another vendor.

    ## Example
    ```python
    model = torch.compile(model)
    ```

    ## Instead
    ```python
    model = model
    ```

    ## Safety
    Safe for torch.compile and decorators, which only make the same computation faster; unsafe for what torch.jit returns,
    since a plain module cannot be saved as a script. torch.jit.save, load and freeze are left to you.
    """

    code = "PW317"
    name = "torch-compiler"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("compile(", "torch.compile", "jit")
    cure = "Leave it out: the target's own compiler takes its place."

    def find(self, file: File) -> Iterator[Finding]:
        for call in file.calls("torch.compile", "torch.jit.script", "torch.jit.trace"):
            if (
                not call.args
                or isinstance(call.args[0], ast.Starred)
                or isinstance(
                    file.tree.parents.get(call), (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
                )
            ):
                continue
            yield self.report(
                file,
                call,
                f"{file.resolve(call.func)} compiles for a CPU or GPU",
                unwrap(file, call, call.args[0]),
                # What torch.jit returns can be saved and inspected, which a plain module cannot.
                safety="safe" if file.resolve(call.func) == "torch.compile" else "unsafe",
            )
        definitions: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = [
            *file.tree.all(ast.FunctionDef),
            *file.tree.all(ast.AsyncFunctionDef),
            *file.tree.all(ast.ClassDef),
        ]
        for function in definitions:
            for decorator in function.decorator_list:
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                name = file.resolve(target)
                if name in ("torch.compile", "torch.jit.script", "torch.jit.script_method"):
                    start, end = file.source.line_span(decorator.lineno, decorator.end_lineno)
                    alone = file.source.data[start : file.source.span(decorator)[0]].strip() == b"@"
                    edits = [Edit(start, end, "")] if alone else []
                    yield self.report(file, decorator, f"{name} compiles for a CPU or GPU", edits)
        module = torch_name(file)
        for info in file.tree.all(ast.ClassDef):
            for base in info.bases:
                if file.resolve(base) == "torch.jit.ScriptModule":
                    edits = [file.replace(base, f"{module}.nn.Module")] if module else []
                    yield self.report(file, base, "a ScriptModule is compiled for a CPU or GPU", edits)
        for call in file.calls("torch.jit.save", "torch.jit.load", "torch.jit.freeze"):
            yield self.report(file, call, f"{file.resolve(call.func)} belongs to torch's own compiler")


RULE = TorchCompiler()
