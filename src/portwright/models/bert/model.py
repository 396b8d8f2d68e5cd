"""BERT: masked tokens and the next sentence."""

from portwright.networks.masked_token_model import MaskedTokenModel


class BertModel(MaskedTokenModel):
    """BERT (Devlin et al. 2018) with its losses, and how well it guesses masked tokens and pairs."""
