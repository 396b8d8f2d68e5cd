from __future__ import annotations

from portwright.port.rule import File, Findings, Rule


class BatchesOfVaryingShape(Rule):
    """Finds batches that are padded to their own longest sample.

    ## Why
    An accelerator compiles a step for one shape. Batches that are as long as their longest sample have many.

    ## Example
    ```python
    from torch.nn.utils.rnn import pad_sequence

    def collate(samples):
        return pad_sequence(samples, batch_first=True)
    ```

    ## Instead
    ```python
    MAX_LENGTH = 512

    def collate(samples):
        return torch.stack([F.pad(s[:MAX_LENGTH], (0, MAX_LENGTH - len(s[:MAX_LENGTH]))) for s in samples])
    ```

    ## Safety
    Manual: the length to pad to, and what to do with longer samples, are choices of yours.
    """

    code = "PW106"
    needs = ("static_shapes",)
    words = ("collate_fn", "pad_sequence", "BucketIterator", "pack_padded_sequence")
    cure = "Pad every sample to one fixed length, or to a few lengths, each with its own loader, and pass a mask."

    def find(self, file: File) -> Findings:
        for call in file.calls(
            "torch.nn.utils.rnn.pad_sequence",
            "torch.nn.utils.rnn.pack_padded_sequence",
            "torch.nn.utils.rnn.pack_sequence",
        ):
            yield self.report(file, call, "sequences are padded to the longest of their batch")
        for home in ("torchtext.data", "torchtext.legacy.data"):
            for call in file.calls(f"{home}.BucketIterator", f"{home}.BucketIterator.splits"):
                yield self.report(file, call, "batches of a BucketIterator differ in length")
