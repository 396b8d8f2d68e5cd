from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.rule import File, Rule

_MAKERS = (
    "torch.sparse.FloatTensor", "torch.sparse.DoubleTensor", "torch.sparse_coo_tensor", "torch.sparse_csr_tensor",
    "torch.sparse_csc_tensor",
)  # fmt: skip
# Names that only sparse tensors have, whose use shows that a file needs one.
_PARTS = (
    "_indices",
    "_values",
    "indices",
    "crow_indices",
    "col_indices",
    "coalesce",
    "is_coalesced",
    "sparse_mask",
    "_nnz",
)


class SparseTensor(Rule):
    """Makes sparse tensors dense, and products with them ordinary ones.

    ## Why
    A vendor's loader and compiler take dense tensors only: the Cerebras SDK cannot even put a sparse one on its device.

    ## Example
    ```python
    def load(indices, values, shape):
        return torch.sparse_coo_tensor(indices, values, shape)
    ```

    ## Instead
    ```python
    def load(indices, values, shape):
        return torch.sparse_coo_tensor(indices, values, shape).to_dense()
    ```

    ## Safety
    Unsafe: a product with the zeros written out is the same, up to the order of its sums, but it takes the memory of the
    whole matrix, and code in other files may ask for what only a sparse tensor has. A file that looks into the parts
    of a sparse tensor is left to you.
    """

    code = "PW343"
    needs = ("no_sparse_tensors",)
    safety = "unsafe"
    words = ("sparse",)
    cure = "Make the matrix dense where it is loaded, or use gather and scatter_add on the edges in the step."

    def find(self, file: File) -> Iterator[Finding]:
        takes_apart = bool(file.attributes(*_PARTS))
        for call in file.calls(*_MAKERS):
            if not _is_made_dense(file, call):
                _, end = file.source.span(call)
                edits = [] if takes_apart else [Edit(end, end, ".to_dense()")]
                yield self.report(file, call, f"{file.resolve(call.func)} makes a sparse tensor", edits)
        for call in file.methods("to_sparse", "to_sparse_csr", "to_sparse_coo"):
            assert isinstance(call.func, ast.Attribute)
            if not _is_made_dense(file, call):
                edits = (
                    []
                    if takes_apart
                    else [Edit(file.source.span(call)[1], file.source.span(call)[1], ".to_dense()")]
                )
                yield self.report(file, call, f".{call.func.attr}() makes a sparse tensor", edits)
        for call in file.calls("torch.sparse.mm"):
            edits = []
            if len(call.args) == 2 and not call.keywords and isinstance(call.func, ast.Attribute):
                prefix = file.segment(call.func.value)
                if prefix.endswith(".sparse"):
                    edits = [file.replace(call.func, f"{prefix.removesuffix('.sparse')}.mm")]
            yield self.report(file, call, "torch.sparse.mm takes a sparse tensor", edits)


def _is_made_dense(file: File, call: ast.Call) -> bool:
    outer = file.tree.parents.get(call)
    return isinstance(outer, ast.Attribute) and outer.attr in ("to_dense", "todense")
