"""T5: an encoder and a decoder with relative positions, trained to fill in what was taken out of a text."""

from portwright.networks import T5
from portwright.networks.target_token_model import TargetTokenModel


class T5Model(TargetTokenModel):
    """T5 (Raffel et al. 2020), or T5 1.1, with its loss, its accuracy and its perplexity."""

    network = T5
