from __future__ import annotations

import ast

from portwright.port.rewrite import argument, has_star, is_constant, keyword, set_keyword
from portwright.port.rule import File, Findings, Rule


def _is_for_training(file: File, call: ast.Call) -> bool:
    """Whether a loader is for training, by its name, else by whether it shuffles."""
    name = _name_of(file, call)
    if any(word in name for word in ("test", "val", "eval", "dev_")):
        return False
    shuffle = argument(call, 2, "shuffle")
    if shuffle is not None or keyword(call, "sampler") is not None:
        return not is_constant(shuffle, False)
    return "train" in name


def _name_of(file: File, call: ast.Call) -> str:
    """The text of the assigned variable, or of the function that returns the loader, and of the dataset."""
    statement = file.tree.statement_of(call)
    function = file.tree.function_of(call)
    parts = [file.segment(call.args[0])] if call.args else []
    if isinstance(statement, ast.Assign):
        parts.append(file.segment(statement.targets[0]))
    elif isinstance(statement, ast.Return) and isinstance(function, ast.FunctionDef):
        parts.append(function.name)
    return " ".join(parts).lower()


class RaggedLastBatch(Rule):
    """Finds loaders whose last batch can be smaller than the others.

    ## Why
    An accelerator compiles a step for one shape of its inputs. A last batch of another size stops the run, or is
    compiled anew.

    ## Example
    ```python
    from torch.utils.data import DataLoader

    train_loader = DataLoader(dataset, batch_size=32, shuffle=True)
    ```

    ## Instead
    ```python
    from torch.utils.data import DataLoader

    train_loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    ```

    ## Safety
    Unsafe: the samples of the last batch are not seen in that epoch. Loaders that look like evaluation (no shuffle,
    or test, val or eval in their name) are left to you, since dropping samples changes the metric.
    """

    code = "PW101"
    needs = ("static_shapes",)
    safety = "unsafe"
    words = ("DataLoader",)
    cure = "Drop the last batch in training (drop_last=True); in evaluation pad it and mask the padding, so that the metric stays the same."

    def find(self, file: File) -> Findings:
        for call in file.calls("torch.utils.data.DataLoader"):
            if (
                has_star(call)
                or keyword(call, "batch_sampler") is not None
                or argument(call, 8, "drop_last") is not None
            ):
                continue
            size = argument(call, 1, "batch_size")
            if size is None or is_constant(size, 1, None):
                continue
            if _is_for_training(file, call):
                edits = set_keyword(file, call, "drop_last", "True")
                yield self.report(
                    file, call, "the last batch of this loader can be smaller than the others", edits
                )
            else:
                yield self.report(
                    file,
                    call,
                    "the last batch of this evaluation loader can be smaller than the others",
                    cure="Pad the last batch and give the padding weight 0 in the metric.",
                )
