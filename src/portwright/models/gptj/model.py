"""GPT-J: attention and feed-forward side by side, and positions that turn queries and keys."""

from portwright.networks.next_token_model import NextTokenModel


class GptJModel(NextTokenModel):
    """GPT-J (EleutherAI 2021) with its loss, its accuracy and its perplexity."""
