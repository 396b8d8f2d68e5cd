"""The page about legal forms; its table comes from the forms themselves."""

from __future__ import annotations

_TEXT = """# Legal forms

Most of what the Cerebras front end refuses has an equal form that it takes. `portwright.layers.legal` has those forms under
torch's own names and signatures, and `legalise` puts them into a model by itself:

```python
from portwright.layers.legal import legalise

legalised = legalise(model, "csx")
loss = legalised.model(batch)
print(legalised.report())
```

- Nothing else changes: modules are swapped in place, parameters are the same objects, and names in the `state_dict` stay.
- Torch's own modules take the class of their legal form at once. Calls such as `x.flip(1)` or `F.one_hot(i, 10)` in your own
  forward are redirected while the model's forward runs, only where the target would refuse them, and each is reported with
  its file and line the first time. `legalised.swaps` holds what was done, `legalised.as_json()` the same as JSON.
- A class of your own that inherits from one of torch's keeps its forward.
- For a loss outside the model: `with legalised.redirecting(): ...`.
- Under `torch.compile` calls are torch's own; `torch.export` shows the legal ones in its non-strict mode.

Equal means: the same values and the same gradients of inputs and parameters on a CPU, in single and double precision
(`tests/unit/layers/legal`). Legal means: the real front end refuses the model as it is and lowers it once legalised, whole training
step (`tests/vendor/test_legal_vendor.py`). It does not mean that it was placed on a wafer.

What to know beforehand:

- Recurrent layers are unrolled: the graph grows with the number of steps, which must be fixed. A `PackedSequence` is refused.
- `one_hot` needs its number of classes and `bincount` its `minlength`: nothing can be read back. Values outside
  raise on a CPU; on the target they are not counted.
- Fourier transforms take time that grows with the square of their size.
- `median` and `kthvalue` may name another of several equal values.
- Random functions (`gumbel_softmax`, `rrelu`), decompositions (`svd`, `inverse`), `ctc_loss`, `nonzero` and boolean indices have
  no equal form and stay refused.

"""


def legal_page(head: str) -> str:
    from portwright.legal_forms import forms_table

    return f"{head}{_TEXT}## All forms\n\n{forms_table()}"
