"""T5's config.json both ways, and what is refused."""

import pytest

from portwright.errors import UnsupportedError, UserError
from portwright.huggingface.t5 import FAMILY, config_of, params_of, share_head
from portwright.job.model_params import T5Params

SMALL = {"vocab_size": 96, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_heads": 2, "num_layers": 3}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {},
            {
                "share_embedding_weights": True,
                "scale_decoder_outputs": True,
                "feed_forward_nonlinearity": "relu",
            },
        ),
        ({"tie_word_embeddings": False}, {"share_embedding_weights": False, "scale_decoder_outputs": False}),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, {"scale_decoder_outputs": False}),
        ({"feed_forward_proj": "gated-gelu"}, {"feed_forward_nonlinearity": "geglu_new"}),
        ({"feed_forward_proj": "gated-silu"}, {"feed_forward_nonlinearity": "swiglu"}),
        ({"feed_forward_proj": "gelu_new"}, {"feed_forward_nonlinearity": "gelu_new"}),
        ({"num_decoder_layers": None}, {"encoder_num_hidden_layers": 3, "decoder_num_hidden_layers": 3}),
        ({"num_decoder_layers": 5}, {"encoder_num_hidden_layers": 3, "decoder_num_hidden_layers": 5}),
        ({"relative_attention_num_buckets": 16}, {"relative_attention_num_buckets": 16}),
        ({"eos_token_id": [7, 8], "pad_token_id": 2}, {"eos_token_id": 7, "decoder_start_token_id": 2}),
        ({"decoder_start_token_id": 3}, {"decoder_start_token_id": 3, "pad_token_id": 0, "eos_token_id": 1}),
    ],
)
def test_config_to_params(config, expected):
    params = params_of({**SMALL, **config})
    assert {name: params[name] for name in expected} == expected
    T5Params(**params)


def test_an_empty_config_is_t5_small():
    assert T5Params(**params_of({})).d_ff == 2048
    assert params_of({})["vocab_size"] == 32128


@pytest.mark.parametrize(
    "params",
    [
        {},
        {
            "feed_forward_nonlinearity": "geglu_new",
            "share_embedding_weights": False,
            "decoder_num_hidden_layers": 4,
        },
        {
            "feed_forward_nonlinearity": "swiglu",
            "scale_decoder_outputs": False,
            "relative_attention_max_distance": 99,
        },
        {
            "feed_forward_nonlinearity": "gelu",
            "dropout_rate": 0.25,
            "layer_norm_epsilon": 1e-5,
            "eos_token_id": 5,
        },
    ],
)
def test_params_come_back(params):
    from transformers import T5Config

    config = config_of(params)
    given = T5Params(**params)
    back = T5Params(
        **share_head(params_of(config), [] if given.share_embedding_weights else ["lm_head.weight"])
    )
    expected = given.model_copy(
        update={
            "scale_decoder_outputs": given.share_embedding_weights
            if given.scale_decoder_outputs is None
            else False
        }
    )
    kept = set(params_of(config))
    assert back.model_dump(include=kept) == expected.model_dump(include=kept)
    theirs = T5Config(
        **{name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    )
    assert theirs.scale_decoder_outputs == expected.scale_decoder_outputs
    assert theirs.num_decoder_layers == given.decoder_num_hidden_layers
    again = params_of(theirs.to_dict())
    assert again["feed_forward_nonlinearity"] == given.feed_forward_nonlinearity


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj is 'gated-mish'"),
        ({"feed_forward_proj": "gated-gelu-x"}, "Did you mean 'gated-gelu'"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder: false"),
    ],
)
def test_what_is_not_modelled_is_refused(config, said):
    with pytest.raises(UnsupportedError, match=said):
        params_of({**SMALL, **config})


def test_an_activation_without_a_name_there_is_refused():
    with pytest.raises(UnsupportedError, match="'geglu'"):
        config_of({"feed_forward_nonlinearity": "geglu"})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"d_model": "wide"}, "model.d_model: "),
        ({"vocab_size": 0}, "model.vocab_size: "),
        ({"vocab_size": 8, "eos_token_id": 8}, "eos_token_id is 8 in a vocabulary of 8"),
    ],
)
def test_bad_params_are_named(params, said):
    with pytest.raises(UserError, match=said):
        FAMILY.entries(params)
