from __future__ import annotations

from portwright.port.legal_form import LegalForm


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
    Safe: the same cell, parameters, names and initial values, a step at a time. A class chosen by its name at run time
    (`getattr(nn, kind)`) is left to you.
    """

    code = "PW312"
    name = "recurrent-layer"
    words = ("nn.", "LSTM", "GRU", "RNN")
    reason = "fused recurrent layers are not lowered there"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    layers = {
        "torch.nn.LSTM": "LSTM",
        "torch.nn.GRU": "GRU",
        "torch.nn.RNN": "RNN",
        "torch.nn.LSTMCell": "LSTMCell",
        "torch.nn.GRUCell": "GRUCell",
        "torch.nn.RNNCell": "RNNCell",
    }


RULE = RecurrentLayer()
