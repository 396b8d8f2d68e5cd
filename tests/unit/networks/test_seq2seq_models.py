"""The folders t5 and transformer: loss, metrics, generation, compiling, half precision."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import portwright
from portwright.errors import UnsupportedError, UserError
from portwright.job.model_params import Seq2SeqParams, T5Params
from portwright.layers.plain_ops import plain_ops
from portwright.networks.token_loss import head_loss
from portwright.runtime.metrics import clear_registry

MODELS = Path(portwright.__file__).parent / "models"
CASES = {
    "t5": ("T5Model", T5Params, {"vocab_size": 40, "d_model": 16, "d_kv": 5, "d_ff": 24, "num_heads": 2}),
    "transformer": (
        "TransformerModel",
        Seq2SeqParams,
        {"src_vocab_size": 40, "tgt_vocab_size": 40, "hidden_size": 16, "filter_size": 24, "num_heads": 2},
    ),
}


def load(folder, part):
    spec = importlib.util.spec_from_file_location(f"{folder}_{part}", MODELS / folder / f"{part}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=CASES)
def make(request):
    kind, section, sizes = CASES[request.param]

    def make_model(**options):
        torch.manual_seed(0)
        params = section(**sizes, dropout_rate=0.0, max_generated_tokens=9).model_dump()
        return getattr(load(request.param, "model"), kind)({"model": {**params, **options}})

    yield make_model
    clear_registry()


def make_batch(eos=1):
    generator = torch.Generator().manual_seed(3)
    sources = torch.randint(4, 40, (4, 8), generator=generator, dtype=torch.int32)
    labels = torch.randint(4, 40, (4, 6), generator=generator, dtype=torch.int32)
    mask, label_mask = torch.ones_like(sources), torch.ones_like(labels)
    for row, (length, target_length) in enumerate(((8, 6), (5, 3), (2, 1), (8, 4))):
        mask[row, length:], label_mask[row, target_length:] = 0, 0
        labels[row, target_length - 1] = eos
    labels = labels * label_mask
    starts = torch.cat((torch.zeros(4, 1, dtype=torch.int32), labels[:, :-1]), dim=1)
    return {
        "input_ids": sources * mask,
        "attention_mask": mask,
        "decoder_input_ids": starts,
        "decoder_attention_mask": label_mask,
        "labels": labels,
    }


def plain_loss(model, batch, smoothing):
    logits = model.model(
        batch["input_ids"],
        batch["attention_mask"],
        batch["decoder_input_ids"],
        batch["decoder_attention_mask"],
    )
    losses = F.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten().long(), reduction="none", label_smoothing=smoothing
    )
    return (losses * batch["decoder_attention_mask"].flatten()).sum()


@pytest.mark.parametrize(("scaling", "divisor"), [("num_tokens", 14), ("batch_size", 4)])
def test_loss_is_that_of_whole_logits(make, scaling, divisor):
    model, batch = make(loss_scaling=scaling, loss_weight=0.5, label_smoothing=0.2), make_batch()
    torch.testing.assert_close(model(batch), plain_loss(model, batch, 0.2) / divisor * 0.5)
    model.eval()  # labels are smoothed in training only
    torch.testing.assert_close(model(batch), plain_loss(model, batch, 0.0) / divisor * 0.5)


def test_padding_of_targets_counts_for_nothing(make):
    model, batch = make(), make_batch()
    changed = {**batch, "labels": torch.where(batch["decoder_attention_mask"] == 1, batch["labels"], 9)}
    changed["decoder_input_ids"] = torch.where(
        batch["decoder_attention_mask"] == 1, batch["decoder_input_ids"], 11
    )
    torch.testing.assert_close(model(changed), model(batch))


def test_a_batch_without_a_token_has_no_loss(make):
    model, batch = make(), make_batch()
    loss = model({**batch, "decoder_attention_mask": torch.zeros_like(batch["labels"])})
    loss.backward()
    assert loss.item() == 0
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)


def test_metrics(make):
    model, batch = make(), make_batch()
    model.eval()
    with torch.no_grad():
        loss = model(batch)
    logits = model.model(batch["input_ids"], batch["attention_mask"], batch["decoder_input_ids"])
    counts = batch["decoder_attention_mask"] == 1
    right = (logits.argmax(-1) == batch["labels"])[counts].double().mean()
    assert model.accuracy.compute() == pytest.approx(right.item())
    assert model.perplexity.compute() == pytest.approx(loss.exp().item(), rel=1e-5)


def test_exact_match_counts_whole_sequences(make):
    model, batch = make(eval_exact_match=True), make_batch()
    model.eval()
    with torch.no_grad():
        wanted = model.generate(batch, 6)
        wanted[1, 0] = (wanted[1, 0] + 1) % 40  # one row of four is to be wrong
        mask = (wanted != 0).int()
        mask[:, 0] = 1
        model({**batch, "labels": wanted, "decoder_attention_mask": mask})
    assert model.exact_match.compute() == 0.75


def test_exact_match_is_refused_where_steps_are_compiled(make):
    model = make(eval_exact_match=True)
    batch = {name: tensor.to("meta") for name, tensor in make_batch().items()}
    with pytest.raises(UnsupportedError, match="eval_exact_match"):
        model.matches(batch)


def test_predict_generates(make):
    model, batch = make(), make_batch()
    made = model.predict(batch)["generated_ids"]
    assert made.shape == (4, 9)
    # Greedy: each token is the likeliest after those before it, without a cache.
    ids = torch.full((4, 1), model.options["decoder_start_token_id"])
    with torch.no_grad():
        logits = model.model(batch["input_ids"], batch["attention_mask"], ids)
    assert torch.equal(made[:, 0], logits[:, -1].argmax(-1))


def test_compiles_whole(make):
    model, batch = make(), make_batch()
    loss = model(batch)
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    torch._dynamo.reset()
    model.model.compile(fullgraph=True, backend="aot_eager")
    compiled = model(batch)
    given = torch.autograd.grad(compiled, list(model.parameters()))
    torch.testing.assert_close(compiled, loss)
    torch.testing.assert_close(given, wanted)


def test_bfloat16_is_near(make):
    model, batch = make(), make_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(batch)
    half.backward()
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(model(batch).item(), rel=0.02)
    assert all(weight.grad.dtype == torch.float32 for weight in model.parameters())


def test_loss_of_plain_ops_equals_the_chunked_one():
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 6, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
    batch = make_batch()
    options = {"label_smoothing": 0.1, "loss_scaling": "num_tokens", "loss_weight": 2.0}
    given = (hidden, weight, None, batch["labels"], batch["decoder_attention_mask"])
    chunked = head_loss(*given, **options)
    with plain_ops():
        plain = head_loss(*given, **options)
    assert "head" not in type(plain.grad_fn).__name__.lower()
    torch.testing.assert_close(plain, chunked)
    torch.testing.assert_close(
        torch.autograd.grad(plain, (hidden, weight)), torch.autograd.grad(chunked, (hidden, weight))
    )


@pytest.mark.parametrize("folder", CASES)
def test_evaluation_of_other_text_is_refused(folder):
    data = load(folder, "data")
    empty = {"data_dir": None, "src_data_dir": None, "tokenizer": None, "objective": "spans"}
    params = {"train_input": {**empty, "data_dir": "mine"}, "eval_input": empty, "model": {}}
    with pytest.raises(UserError, match="eval_input names no data"):
        data.get_eval_dataloader(params)
