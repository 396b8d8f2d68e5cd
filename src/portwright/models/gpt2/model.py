"""GPT-2: a decoder of layers that norm first, with learned positions."""

from portwright.networks.next_token_model import NextTokenModel


class Gpt2Model(NextTokenModel):
    """GPT-2 (Radford et al. 2019) with its loss, its accuracy and its perplexity."""
