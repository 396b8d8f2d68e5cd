from __future__ import annotations

import ast
import re

from portwright.port.finding import Edit
from portwright.port.rewrite import has_star, torch_name, unwrap
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import FUNCTIONS

_ASKS = re.compile(rb"is_compiling|is_scripting|is_dynamo")
# Methods of a compiled model that do not show its parameters' names.
_SHOWS_NO_NAMES = {"train", "eval", "parameters", "zero_grad", "requires_grad_"}


def _keeps_names(file: File, call: ast.Call) -> bool:
    """Whether no code can see the changed parameter names of a compiled model; always so for a function."""
    if _ASKS.search(file.source.data):
        return False
    reference = file.resolve(call.args[0]) or ""
    if reference.startswith(f"{file.source.path}::") and not file.names.is_module_class(reference):
        return True
    match file.tree.parents[call]:
        case ast.Assign([ast.Name(name) as target]):
            is_alone = file.tree.function_of(call) is not None or _is_run(file, call)
            return is_alone and _is_only_called(file, target, name)
    return False


def _is_run(file: File, node: ast.AST) -> bool:
    """Whether a file is a script, not imported: `__name__` is tested around the node, or a loop is at the top level."""
    guards = (outer for outer in file.tree.ancestors(node) if isinstance(outer, ast.If))
    loops = file.tree.all(ast.For, ast.While)
    return any("__name__" in file.segment(g.test) for g in guards) or any(
        file.tree.function_of(n) is None for n in loops
    )


def _is_only_called(file: File, place: ast.AST, name: str, depth: int = 0) -> bool:
    """Whether a name is only ever called, here and in functions of the file that it is passed to."""
    owner = file.tree.scope_of(place).lookup(name)
    if owner is None or isinstance(owner[0].node, ast.ClassDef) or depth > 3:
        return False
    for use in file.tree.reads(name, owner[0]):
        outer = file.tree.parents[use]
        outer = file.tree.parents[outer] if isinstance(outer, ast.keyword) else outer
        if isinstance(outer, ast.Attribute) and outer.attr in _SHOWS_NO_NAMES:
            continue
        if not isinstance(outer, ast.Call):
            return False
        if outer.func is not use and file.resolve(outer.func) != "torch.compile":
            given = _parameter(file, outer, use)
            if given is None or not _is_only_called(file, *given, depth + 1):
                return False
    return True


def _parameter(file: File, call: ast.Call, argument: ast.Name) -> tuple[ast.stmt, str] | None:
    """The parameter of a function of this file to which a call passes an argument, after the function's first statement."""
    function = file.tree.only_definition(call.func)
    if not isinstance(function, FUNCTIONS) or has_star(call):
        return None
    places = [*function.args.posonlyargs, *function.args.args]
    given = {p.arg: value for p, value in zip(places, call.args, strict=False)}
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    return next(((function.body[0], name) for name, value in given.items() if value is argument), None)


def _is_plain(file: File, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a scripted function is only called, and torch.jit is used only in decorators."""
    names = [
        n for n in file.tree.all(ast.Attribute, ast.Name) if (file.resolve(n) or "").startswith("torch.jit.")
    ]
    return _is_only_called(file, function, function.name) and all(
        node in getattr(file.tree.parents[node], "decorator_list", ())
        and file.resolve(node) == "torch.jit.script"
        for node in names
    )


class TorchCompiler(Rule):
    """Takes out torch.compile and torch.jit, and finds kernels that a script brings along.

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
    Safe for a function that is only called: compiled or scripted it computes the same, as torch's own TORCH_COMPILE_DISABLE=1
    and PYTORCH_JIT=0 do, up to rounding and to the random numbers that compiled code draws in an order of its own. A model that
    is compiled has `_orig_mod.` before the names of its parameters: safe where all that its file does with it is to call it, to
    train it and to ask for its parameters, in functions of the file too, and no other file can see it; else unsafe, so that
    checkpoints keep their keys. Unsafe, too, in a file that asks whether it is compiled, for a class, and for what torch.jit
    returns, which can be saved as a script: for a decorator too, where the file uses more of torch.jit or of the function.
    torch.jit.save, load and freeze, and kernels in C++, CUDA, Triton or Numba, are left to you.
    """

    code = "PW317"
    needs = ("own_compiler",)
    safety = "safe"
    words = ("compile(", "torch.compile", "jit", "cpp_extension", "RawKernel")
    cure = "Leave it out: the target's own compiler takes its place."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.compile", "torch.jit.script", "torch.jit.trace"):
            is_decorator = isinstance(file.tree.parents[call], (*FUNCTIONS, ast.ClassDef))
            if is_decorator or not call.args or isinstance(call.args[0], ast.Starred):
                continue
            # Results of torch.jit can be saved and inspected; a plain module cannot.
            is_safe = file.resolve(call.func) == "torch.compile" and _keeps_names(file, call)
            message = f"{file.resolve(call.func)} compiles for a CPU or GPU"
            edits = unwrap(file, call, call.args[0])
            yield self.report(file, call, message, edits, safety="safe" if is_safe else "unsafe")
        for function in [*file.tree.all(*FUNCTIONS), *file.tree.all(ast.ClassDef)]:
            for decorator in function.decorator_list:
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                name = file.resolve(target)
                if name in ("triton.jit", "numba.cuda.jit", "cupyx.jit.rawkernel"):
                    yield self.report(file, decorator, f"{name} compiles for a CPU or GPU")
                if name in ("torch.compile", "torch.jit.script", "torch.jit.script_method"):
                    start, end = file.source.line_span(decorator.lineno, decorator.end_lineno)
                    alone = file.source.data[start : file.source.span(decorator)[0]].strip() == b"@"
                    edits = [Edit(start, end, "")] if alone else []
                    asks = _ASKS.search(file.source.data) or isinstance(function, ast.ClassDef)
                    asks = asks or (name != "torch.compile" and not _is_plain(file, function))
                    message = f"{name} compiles for a CPU or GPU"
                    yield self.report(file, decorator, message, edits, safety="unsafe" if asks else "safe")
        for base in (base for node in file.tree.all(ast.ClassDef) for base in node.bases):
            if file.resolve(base) == "torch.jit.ScriptModule":
                module = torch_name(file, base)
                edits = [file.replace(base, f"{module}.nn.Module")] if module else []
                message = "a ScriptModule is compiled for a CPU or GPU"
                yield self.report(file, base, message, edits, safety="unsafe")
        for call in file.calls(
            "torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline", "cupy.RawKernel"
        ):
            yield self.report(file, call, f"{file.resolve(call.func)} compiles for a CPU or GPU")
        for call in file.calls("torch.jit.save", "torch.jit.load", "torch.jit.freeze"):
            yield self.report(file, call, f"{file.resolve(call.func)} belongs to torch's own compiler")
