"""The Transformer of "Attention is all you need", which translates."""

from portwright.networks import Seq2Seq
from portwright.networks.target_token_model import TargetTokenModel


class TransformerModel(TargetTokenModel):
    """The Transformer (Vaswani et al. 2017) with its loss, its accuracy and its perplexity."""

    network = Seq2Seq
