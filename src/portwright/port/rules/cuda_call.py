from __future__ import annotations

import ast

from portwright.port.devices import host_side, is_device_choice
from portwright.port.finding import Edit, Finding, Safety
from portwright.port.places import device_safety
from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Findings, Rule
from portwright.port.switches import IDLE, behind, is_pure

_QUESTIONS = ("is_available", "is_built", "is_bf16_supported", "device_count")


def _is_demand(file: File, call: ast.Call) -> bool:
    """Whether a script refuses to run without CUDA, so that the user has to decide."""
    statement = file.tree.statement_of(call)
    if isinstance(statement, ast.Assert):
        return True
    if not isinstance(statement, ast.If) or not isinstance(file.tree.parents.get(call), ast.UnaryOp):
        return False
    last = statement.body[-1]
    return isinstance(last, ast.Raise) or (isinstance(last, ast.Expr) and "exit" in file.segment(last))


def _only_moves(file: File, call: ast.Call) -> bool:
    """Whether what current_accelerator() returns is used as a device, and never compared with None."""
    statement = file.tree.statement_of(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return isinstance(file.tree.parents.get(call), (ast.Call, ast.keyword))
    target = statement.targets[0]
    uses: list[ast.expr] = [
        *(n for n in file.tree.all(ast.Name) if isinstance(target, ast.Name) and n.id == target.id),
        *(file.attributes(target.attr) if isinstance(target, ast.Attribute) else ()),
    ]
    return len(statement.targets) == 1 and not any(
        isinstance(
            file.tree.parents.get(use), (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.If, ast.IfExp, ast.Assert)
        )
        for use in uses
        if isinstance(getattr(use, "ctx", None), ast.Load)
    )


class CudaCall(Rule):
    """Takes out calls that speak to CUDA: seeds, synchronisation, caches, and questions whether it is there.

    ## Why
    There is no CUDA device on the host of an accelerator. What only prepares one has nothing to prepare.

    ## Example
    ```python
    torch.cuda.manual_seed(1)
    use_cuda = torch.cuda.is_available()
    ```

    ## Instead
    ```python
    use_cuda = False
    ```

    ## Safety
    Safe where only devices hang on it. Seeds, synchronisation and caches of CUDA concern work on CUDA, and the port
    has none; their arguments must call nothing. A question whether CUDA (mps, xpu) is there becomes False where
    everything that its value reaches is known to choose devices, to move to them, to pin memory, to seed or switch
    CUDA, or to print: then both answers train alike.

    Unsafe where the file sets something by the type of a device (PW508 names it), or writes into a moved tensor whose
    original lives on.

    Where it also decides a setting (shuffle, workers, batch size, precision, ...), or its value goes out of sight, the
    question stays as it is written, so that the port does what the original does with CUDA and without; the finding
    names the lines. `--unsafe` answers it with True where all of these lines are in sight, so that the settings which
    the accelerator had stay in force. Memory figures, events and streams are left to you, and so is a script that
    refuses to run without CUDA.
    """

    code = "PW501"
    needs = ("no_cuda_calls",)
    safety = "safe"
    words = ("torch.cuda", "torch.accelerator", "cuda.", "mps", "xpu")
    cure = "Ask the target's own software instead, or leave it out."

    def find(self, file: File) -> Findings:
        for call in file.calls(
            "torch.cuda.", "torch.accelerator.", "torch.backends.mps.", "torch.mps.", "torch.xpu."
        ):
            name = file.resolve(call.func) or ""
            last = name.rpartition(".")[2]
            if ".amp." in name:
                continue
            statement = file.tree.statement_of(call)
            parent = file.tree.parents.get(call)
            edits: list[Edit] = []
            safety: Safety = "safe"
            if last in IDLE and statement is not None and file.tree.stands_alone(call):
                if all(is_pure(file, a) for a in (*call.args, *(k.value for k in call.keywords))):
                    edits = remove_statement(file, statement)
            elif last in _QUESTIONS and not call.args and not call.keywords:
                if is_device_choice(file, call):
                    continue
                if last != "device_count" or isinstance(parent, ast.Compare):
                    yield self._question(file, call, name, "0" if last == "device_count" else "False")
                    continue
            elif last == "current_accelerator":
                if isinstance(parent, ast.IfExp) and host_side(file, parent) is not None:
                    continue
                torch_name = file.segment(call.func).partition(".")[0]
                if torch_name == "torch" and _only_moves(file, call):
                    edits, safety = [file.replace(call, 'torch.device("cpu")')], device_safety(file)
            yield self.report(file, call, f"{name} speaks to CUDA", edits, safety=safety)

    def _question(self, file: File, call: ast.Call, name: str, answer: str) -> Finding:
        decides = behind(file, call)
        if decides.is_demand or _is_demand(file, call):
            return self.report(file, call, f"{name} speaks to CUDA")
        if not decides:
            edits = [file.replace(call, answer)]
            return self.report(file, call, f"{name} speaks to CUDA", edits, safety=device_safety(file))
        may = answer == "False" and decides.may_be_forced(file)
        return self.report(
            file,
            call,
            f"{name}() decides more than the device: {decides.describe(file)}. "
            "What is set there for CUDA is not in force on a host without CUDA",
            [file.replace(call, "True")] if may else [],
            cure="Write down the settings that are to hold on the target, without the question.",
            safety="unsafe",
        )
