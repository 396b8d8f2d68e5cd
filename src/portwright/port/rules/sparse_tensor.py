from __future__ import annotations

import ast

from portwright.port.rewrite import insert_after
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import last_name, words

_MAKERS = (
    "torch.sparse.FloatTensor", "torch.sparse.DoubleTensor", "torch.sparse_coo_tensor", "torch.sparse_csr_tensor",
    "torch.sparse_csc_tensor",
)  # fmt: skip
# Names that only sparse tensors have, whose use shows that a file needs one.
_PARTS = words("_indices _values indices crow_indices col_indices coalesce is_coalesced sparse_mask _nnz")


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

    def find(self, file: File) -> Findings:
        takes_apart = bool(file.attributes(*_PARTS))
        methods = file.methods("to_sparse", "to_sparse_csr", "to_sparse_coo")
        for call in [*file.calls(*_MAKERS), *methods]:
            outer = file.tree.parents.get(call)
            if not (isinstance(outer, ast.Attribute) and outer.attr in ("to_dense", "todense")):
                edits = [] if takes_apart else insert_after(file, call, ".to_dense()")
                name = file.resolve(call.func) or f".{last_name(call.func)}()"
                yield self.report(file, call, f"{name} makes a sparse tensor", edits)
        for call in file.calls("torch.sparse.mm"):
            edits = []
            if len(call.args) == 2 and not call.keywords and isinstance(call.func, ast.Attribute):
                prefix = file.segment(call.func.value)
                if prefix.endswith(".sparse"):
                    edits = [file.replace(call.func, f"{prefix.removesuffix('.sparse')}.mm")]
            yield self.report(file, call, "torch.sparse.mm takes a sparse tensor", edits)
