"""RoBERTa: BERT's encoder with masked tokens alone, and positions that count from padding's."""

from portwright.networks.masked_token_model import MaskedTokenModel


class RobertaModel(MaskedTokenModel):
    """RoBERTa (Liu et al. 2019) with its loss, and how well it guesses masked tokens."""
