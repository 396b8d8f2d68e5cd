"""GPT-3: GPT-2's network at other sizes, dense in every layer, or with dense and banded layers by turns."""

from portwright.networks.next_token_model import NextTokenModel


class Gpt3Model(NextTokenModel):
    """GPT-3 (arXiv 2005.14165) with its loss, its accuracy and its perplexity."""
