"""Linformer: BERT's encoder, whose attention looks at mixtures of keys and values instead of at each of them."""

from portwright.networks.masked_token_model import MaskedTokenModel


class LinformerModel(MaskedTokenModel):
    """Linformer (Wang et al. 2020) with BERT's losses and metrics; `model.attention_style` says what shares a mixture."""
