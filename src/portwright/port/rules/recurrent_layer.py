from __future__ import annotations

import ast

from portwright.port.legal_form import LegalForm, Use
from portwright.port.rewrite import legal_import
from portwright.port.rule import File, Findings
from portwright.port.tree import is_name

_CLASSES = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"})


class RecurrentLayer(LegalForm):
    """Puts unrolled legal forms in the place of LSTM, GRU and RNN layers and cells.

    ## Why
    The Cerebras front end does not lower fused recurrent layers. The unrolled form needs a fixed number of steps, which a fixed
    sequence length gives.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(32, 64, batch_first=True)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = legal.LSTM(32, 64, batch_first=True)
    ```

    ## Safety
    Safe: the same cell, parameters, names and initial values, a step at a time. A class chosen by its name
    (`getattr(nn, kind)`) is left to you unless an `if` around it lists recurrent layers only, and so are layers in a
    file that packs sequences, whose number of steps depends on the data.
    """

    code = "PW312"
    words = ("nn.", "LSTM", "GRU", "RNN")
    reason = "fused recurrent layers are not lowered there"
    forms = "LSTM GRU RNN LSTMCell GRUCell"
    also = {"torch.nn.RNNCell": "RNNCell"}

    @staticmethod
    def is_refused(use: Use) -> bool | str:
        packs = ("pack_padded_sequence", "pack_sequence", "PackedSequence")
        if any(word in use.file.source.text for word in packs):
            return f"Pad to a fixed length instead of packing, then use legal.{use.name.rpartition('.')[2]}."
        return True

    def find(self, file: File) -> Findings:
        yield from super().find(file)
        for call in file.tree.all(ast.Call):
            if (
                not is_name(call.func, "getattr")
                or len(call.args) < 2
                or isinstance(call.args[1], ast.Constant)
            ):
                continue
            if file.resolve(call.args[0]) != "torch.nn":
                continue
            choices = _choices(file, call)
            if choices and choices <= _CLASSES:
                legal, imports = legal_import(file)
                edits = [file.replace(call.args[0], legal)]
                yield self.report(
                    file, call, f"one of {', '.join(sorted(choices))}: {self.reason}", edits, imports
                )
            elif any(name in file.source.text for name in ("LSTM", "GRU")):
                yield self.report(
                    file,
                    call,
                    f"a layer is chosen by its name, {file.segment(call.args[1])}",
                    cure="If it can be a recurrent layer, take it from portwright.layers.legal.",
                )


def _choices(file: File, call: ast.Call) -> set[str]:
    """The names that an `if` around the call allows: `if kind in ["LSTM", "GRU"]`."""
    name = file.segment(call.args[1])
    inner: ast.AST = call
    for outer in file.tree.ancestors(call):
        if isinstance(outer, ast.If) and inner in outer.body and isinstance(outer.test, ast.Compare):
            test = outer.test
            listed = (
                test.comparators[0].elts
                if isinstance(test.comparators[0], (ast.List, ast.Tuple, ast.Set))
                else []
            )
            if file.segment(test.left) == name and isinstance(test.ops[0], ast.In) and listed:
                return {e.value if isinstance(e, ast.Constant) else "?" for e in listed}  # type: ignore[misc]
        inner = outer
    return set()
