"""Metrics against scikit-learn and plain restatements, in one piece and in many."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor

from portwright.errors import UserError
from portwright.runtime.metrics import (
    AccuracyMetric,
    BitsPerXMetric,
    DiceCoefficientMetric,
    FBetaScoreMetric,
    MatthewsCorrelationCoefficientMetric,
    MeanIOUMetric,
    Metric,
    NoValueError,
    PerplexityMetric,
    RougeScoreMetric,
    clear_registry,
    compute_all_metrics,
    registered_metrics,
    reset_all_metrics,
)
from portwright.runtime.metrics.text import longest_common_subsequence


@pytest.fixture(autouse=True)
def _empty_registry() -> Iterator[None]:
    clear_registry()
    yield
    clear_registry()


NUM_CLASSES = 4

CLASS_METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": AccuracyMetric,
    "f1 micro": lambda: FBetaScoreMetric(NUM_CLASSES),
    "f2 macro": lambda: FBetaScoreMetric(NUM_CLASSES, 2.0, "macro"),
    "f0.5 macro, two ignored": lambda: FBetaScoreMetric(NUM_CLASSES, 0.5, "macro", [0, 3]),
    "f1 micro, one ignored": lambda: FBetaScoreMetric(NUM_CLASSES, ignore_labels=[1]),
    "mcc": lambda: MatthewsCorrelationCoefficientMetric(NUM_CLASSES),
    "dice": lambda: DiceCoefficientMetric(NUM_CLASSES),
    "iou": lambda: MeanIOUMetric(NUM_CLASSES),
}


def _expected(kind: str, labels: list[int], predictions: list[int], weights: list[float]) -> float:
    every = list(range(NUM_CLASSES))
    w = {"sample_weight": weights}
    fbeta: dict[str, Any] = {**w, "zero_division": 0}
    if kind == "accuracy":
        return float(sk.accuracy_score(labels, predictions, **w))
    if kind == "f1 micro":
        return float(sk.fbeta_score(labels, predictions, beta=1, average="micro", labels=every, **fbeta))
    if kind == "f2 macro":
        return float(sk.fbeta_score(labels, predictions, beta=2, average="macro", labels=every, **fbeta))
    if kind == "f0.5 macro, two ignored":
        return float(sk.fbeta_score(labels, predictions, beta=0.5, average="macro", labels=[1, 2], **fbeta))
    if kind == "f1 micro, one ignored":
        return float(sk.fbeta_score(labels, predictions, beta=1, average="micro", labels=[0, 2, 3], **fbeta))
    if kind == "mcc":
        with warnings.catch_warnings():  # sklearn warns of a single label, and rightly says 0
            warnings.simplefilter("ignore", UserWarning)
            return float(sk.matthews_corrcoef(labels, predictions, **w))
    present = sorted(
        {c for pair in zip(labels, predictions, weights, strict=True) if pair[2] for c in pair[:2]}
    )
    if kind == "dice":  # the dice coefficient of a class is its F1
        return float(sk.f1_score(labels, predictions, average="macro", labels=present, **fbeta))
    return float(sk.jaccard_score(labels, predictions, average="macro", labels=present, **fbeta))


_class = st.integers(0, NUM_CLASSES - 1)
_samples = st.lists(
    st.tuples(_class, _class, st.sampled_from([0.0, 0.25, 1.0, 3.0])), min_size=1, max_size=40
)
_cuts = st.lists(st.integers(0, 40), max_size=6)


@pytest.mark.parametrize("kind", CLASS_METRICS)
@given(samples=_samples, cuts=_cuts)
@settings(max_examples=60, deadline=None)
def test_class_metrics_equal_sklearn_however_the_data_is_batched(
    kind: str, samples: list[tuple[int, int, float]], cuts: list[int]
) -> None:
    labels, predictions, weights = (list(column) for column in zip(*samples, strict=True))
    metric = CLASS_METRICS[kind]()
    edges = [0, *sorted(min(cut, len(samples)) for cut in cuts), len(samples)]
    for start, stop in itertools.pairwise(edges):  # empty batches included
        piece = slice(start, stop)
        metric(
            labels=torch.tensor(labels[piece], dtype=torch.int64),
            predictions=torch.tensor(predictions[piece], dtype=torch.int64),
            weights=torch.tensor(weights[piece]),
        )
    if sum(weights) == 0:
        with pytest.raises(NoValueError, match="no value"):
            metric.compute()
    else:
        assert metric.compute() == pytest.approx(_expected(kind, labels, predictions, weights), abs=1e-12)


@pytest.mark.parametrize("kind", CLASS_METRICS)
def test_no_weights_count_each_label_once(kind: str) -> None:
    torch.manual_seed(0)
    labels, predictions = torch.randint(NUM_CLASSES, (2, 6, 7))
    metric = CLASS_METRICS[kind]()
    metric(labels, predictions)
    ones = [1.0] * labels.numel()
    expected = _expected(kind, labels.flatten().tolist(), predictions.flatten().tolist(), ones)
    assert metric.compute() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", CLASS_METRICS)
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int32, torch.int16]
)
def test_class_numbers_may_be_of_any_type(kind: str, dtype: torch.dtype) -> None:
    labels, predictions = torch.tensor([0, 1, 2, 3, 1]), torch.tensor([0, 1, 3, 3, 2])
    wide, narrow = CLASS_METRICS[kind](), CLASS_METRICS[kind]()
    wide(labels, predictions)
    narrow(labels.to(dtype), predictions.to(dtype), weights=torch.ones(5, dtype=torch.bfloat16))
    assert narrow.compute() == wide.compute()


@pytest.mark.parametrize("kind", CLASS_METRICS)
def test_gradients_and_inference_mode_do_not_matter(kind: str) -> None:
    metric = CLASS_METRICS[kind]()
    labels, predictions = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1])
    with torch.inference_mode():
        metric(labels, predictions)
    metric(labels, predictions, weights=torch.ones(3, requires_grad=True))
    once = CLASS_METRICS[kind]()
    once(torch.cat([labels, labels]), torch.cat([predictions, predictions]))
    assert metric.compute() == once.compute()


def test_binary_fbeta_is_the_score_of_class_one() -> None:
    labels, predictions = [0, 1, 1, 1, 0, 1], [1, 1, 0, 1, 0, 1]
    metric = FBetaScoreMetric(2, 2.0, "binary")
    metric(labels, predictions)
    assert metric.compute() == pytest.approx(sk.fbeta_score(labels, predictions, beta=2), abs=1e-12)


def test_binary_mcc_has_the_sign_of_the_correlation() -> None:
    metric = MatthewsCorrelationCoefficientMetric()
    metric(torch.tensor([True, False, True]), torch.tensor([False, True, False]))
    assert metric.compute() == -1.0


def test_constant_predictions_have_no_correlation() -> None:
    metric = MatthewsCorrelationCoefficientMetric()
    metric([0, 1, 0, 1], [1, 1, 1, 1])
    assert metric.compute() == 0.0


@pytest.mark.parametrize("kind", [kind for kind in CLASS_METRICS if kind != "accuracy"])
@pytest.mark.parametrize("padding", [-100, -1])
def test_padding_labels_do_not_count(kind: str, padding: int) -> None:
    clean, padded = CLASS_METRICS[kind](), CLASS_METRICS[kind]()
    clean([0, 1, 2], [0, 2, 2])
    # What stands at a padded place may be anything.
    padded([0, padding, 1, 2, padding], [0, 99, 2, 2, -7], weights=[1, math.nan, 1, 1, math.inf])
    assert padded.compute() == clean.compute()


@pytest.mark.parametrize(
    "make", [AccuracyMetric, lambda **kw: MeanIOUMetric(4, **kw), lambda **kw: FBetaScoreMetric(4, **kw)]
)
def test_ignore_index_leaves_its_labels_out(make: Callable[..., Metric]) -> None:
    clean, ignoring = make(), make(ignore_index=3)
    clean([0, 1, 2], [0, 2, 2])
    ignoring(torch.tensor([0, 3, 1, 2, 3], dtype=torch.uint8), [0, 0, 2, 2, 3])
    assert ignoring.compute() == clean.compute()


def test_an_ignore_index_below_zero_does_not_wrap_around_in_small_types() -> None:
    metric = AccuracyMetric(ignore_index=-100)
    metric(torch.tensor([156, 1], dtype=torch.uint8), torch.tensor([0, 1], dtype=torch.uint8))
    assert metric.compute() == 0.5


def test_accuracy_does_not_confuse_classes_that_bfloat16_confuses() -> None:
    metric = AccuracyMetric()
    metric(torch.tensor([257, 256]), torch.tensor([256.0, 256.0], dtype=torch.bfloat16))
    assert metric.compute() == 0.5


def test_accuracy_compares_flattened_as_the_model_zoo_does() -> None:
    metric = AccuracyMetric()
    metric(labels=torch.tensor([[1], [2]]), predictions=torch.tensor([1, 3]))
    assert metric.compute() == 0.5


@pytest.mark.parametrize(
    ("weights", "expected"), [(2.0, 0.5), ([[1.0], [0.0]], 1.0), ([[1.0, 0.0]], 0.5), ([[0, 0], [1, 3]], 0.0)]
)
def test_weights_broadcast_when_it_is_clear_how(weights: Any, expected: float) -> None:
    metric = AccuracyMetric()
    metric(torch.zeros(2, 2), torch.tensor([[0, 0], [1, 1]]), weights)
    assert metric.compute() == expected


def test_weights_of_a_lower_rank_are_refused() -> None:
    with pytest.raises(UserError, match=r"weights of shape \(2,\) for labels of shape \(2, 2\)"):
        AccuracyMetric()(torch.zeros(2, 2), torch.zeros(2, 2), torch.ones(2))


@pytest.mark.parametrize("labels", [[0, 1, 4], [0, 1, 2.5], [0, 1, math.nan]])
def test_labels_that_are_no_class_are_an_error_not_a_wrong_number(labels: list[float]) -> None:
    metric = MeanIOUMetric(4, "eval/iou")
    metric(labels, [0, 1, 2])
    with pytest.raises(
        UserError, match=r"'eval/iou' received 1 labels or predictions that are no class of 0..3"
    ):
        metric.compute()


def test_probabilities_are_no_predictions() -> None:
    metric = FBetaScoreMetric(2)
    metric(torch.tensor([0, 1]), torch.tensor([0.2, 0.9]))
    with pytest.raises(UserError, match="2 labels or predictions that are no class"):
        metric.compute()


def test_num_classes_is_not_wrapped_by_small_label_types() -> None:
    metric = MeanIOUMetric(300)
    metric(torch.tensor([255, 3], dtype=torch.uint8), torch.tensor([255, 3], dtype=torch.uint8))
    assert metric.compute() == 1.0


def test_logits_are_refused_with_the_cure() -> None:
    with pytest.raises(UserError, match="argmax"):
        AccuracyMetric()(torch.zeros(4), torch.zeros(4, 10))


def test_counts_stay_exact_beyond_what_float32_holds() -> None:
    metric = AccuracyMetric()
    size = 2**22
    right = torch.zeros(size, dtype=torch.int8)
    for _ in range(8):
        metric(right, right)
    metric(torch.tensor([0]), torch.tensor([1]))  # 2**25 right, one wrong: float32 would say 1.0
    assert metric.compute() == 2**25 / (2**25 + 1)


def test_mcc_is_exact_for_billions_of_samples() -> None:
    metric = MatthewsCorrelationCoefficientMetric()
    tp, tn, fp, fn = 3_000_000_001, 3_000_000_000, 2_999_999_999, 3_000_000_000
    metric([1, 0, 0, 1], [1, 0, 1, 0], weights=torch.tensor([tp, tn, fp, fn], dtype=torch.float64))
    expected = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert metric.compute() == pytest.approx(expected, rel=1e-13)


@given(st.lists(st.lists(st.floats(0, 20), min_size=1, max_size=8), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_perplexity_is_e_to_the_loss_per_token(batches: list[list[float]]) -> None:
    summed, each = PerplexityMetric(), PerplexityMetric()
    for losses in batches:
        labels = torch.zeros(len(losses), dtype=torch.int32)
        summed(labels=labels, loss=torch.tensor(math.fsum(losses), dtype=torch.float64))
        each(labels=labels, loss=torch.tensor(losses, dtype=torch.float64))
    flat = [x for losses in batches for x in losses]
    assert summed.compute() == pytest.approx(math.exp(math.fsum(flat) / len(flat)), rel=1e-12)
    assert each.compute() == pytest.approx(summed.compute(), rel=1e-12)


def test_perplexity_agrees_with_cross_entropy_on_ignored_and_weighted_tokens() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    labels[1, 2:] = -100
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    from_sum, from_each, weighted = (
        PerplexityMetric(),
        PerplexityMetric(),
        PerplexityMetric(ignore_index=None),
    )
    from_sum(labels, losses.sum())
    from_each(labels, losses.reshape(2, 5))
    weighted(labels, torch.where(labels.flatten() < 0, math.nan, losses), weights=(labels >= 0).half())
    for metric in (from_sum, from_each, weighted):
        assert metric.compute() == pytest.approx(float(mean.exp()), rel=1e-6)


def test_perplexity_of_an_enormous_loss_is_infinite() -> None:
    metric = PerplexityMetric()
    metric(torch.zeros(1), torch.tensor(1e6))
    assert metric.compute() == math.inf


def test_a_loss_that_is_neither_a_sum_nor_per_label_is_refused() -> None:
    with pytest.raises(UserError, match=r"loss of shape \(2,\) for labels of shape \(2, 5\)"):
        PerplexityMetric()(torch.zeros(2, 5), torch.zeros(2))


def test_bits_per_byte_use_the_data_sets_tokens_per_byte() -> None:
    pile, own, word = (
        BitsPerXMetric(),
        BitsPerXMetric(dataset="mine", tokens_per_x=0.5),
        BitsPerXMetric("per_word"),
    )
    for metric in (pile, own, word):
        metric(torch.zeros(4), torch.tensor(4 * math.log(8)))
    assert pile.compute() == pytest.approx(3 * 0.29335)
    assert own.compute() == pytest.approx(1.5)
    assert word.compute() == pytest.approx(3)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: BitsPerXMetric("per_bite"), "Did you mean 'per_byte'"),
        (lambda: BitsPerXMetric(dataset="pilee"), "Did you mean 'pile'"),
        (lambda: BitsPerXMetric(tokens_per_x=0.0), "above 0, received 0.0"),
        (lambda: FBetaScoreMetric(1), "at least 2, received 1"),
        (lambda: FBetaScoreMetric(3, beta=0), "above 0, received 0"),
        (lambda: FBetaScoreMetric(3, average_type="makro"), "Did you mean 'macro'"),
        (lambda: FBetaScoreMetric(3, average_type="binary"), "num_classes=3"),
        (lambda: FBetaScoreMetric(2, ignore_labels=[0, 1]), "All 2 classes"),
        (lambda: MeanIOUMetric(2, ignore_classes=[2]), r"Class 2 .* 0\.\.1"),
        (lambda: DiceCoefficientMetric(2.0), "received 2.0"),  # type: ignore[arg-type]
        (lambda: RougeScoreMetric(max_n=0), "at least 1, received 0"),
        (lambda: AccuracyMetric(7), "must be text, received 7"),  # type: ignore[arg-type]
        (lambda: AccuracyMetric()("no", torch.zeros(1)), "labels of type str"),
        (lambda: AccuracyMetric()(torch.zeros(1, dtype=torch.complex64), torch.zeros(1)), "complex labels"),
    ],
)
def test_bad_arguments_say_what_was_received(make: Callable[[], object], match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        make()
    assert caught.value.cure


def test_ignored_classes_stay_out_of_the_mean() -> None:
    labels, predictions = [0, 1, 1, 2, 2], [0, 1, 2, 2, 0]
    iou, dice = MeanIOUMetric(3, ignore_classes=[0]), DiceCoefficientMetric(3, ignore_classes=[0])
    for metric in (iou, dice):
        metric(labels, predictions)
    assert iou.compute() == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert dice.compute() == pytest.approx((2 / 3 + 1 / 2) / 2)
    iou.reset()
    iou([0], [0])
    with pytest.raises(NoValueError, match="only ignored classes"):
        iou.compute()


# -- ROUGE -----------------------------------------------------------------------------------------------------


def _slow_lcs(first: str, second: str) -> int:
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(st.text("abc", max_size=70), st.text("abcd", max_size=70))
@settings(max_examples=200, deadline=None)
def test_longest_common_subsequence_equals_the_table_method(first: str, second: str) -> None:
    assert longest_common_subsequence(first, second) == _slow_lcs(first, second)


def test_rouge_by_hand() -> None:
    metric = RougeScoreMetric(name="eval/rouge")
    metric(labels=["The cat sat on the mat."], predictions=["the cat lay on a mat"])
    # Words in common: the (once), cat, on, mat; the pair in common: "the cat"; in order: the cat on mat.
    score = metric.compute()
    assert isinstance(score, dict)
    assert score["rouge1/precision"] == pytest.approx(4 / 6)
    assert score["rouge2/recall"] == pytest.approx(1 / 5)
    assert score["rougeL/f1"] == pytest.approx(4 / 6)
    assert set(score) == {f"rouge{v}/{p}" for v in "12L" for p in ("precision", "recall", "f1")}


_tokens = st.lists(st.integers(0, 3), max_size=8)


@given(st.lists(st.tuples(_tokens, _tokens), min_size=1, max_size=8), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_rouge_is_the_mean_over_samples_however_batched(
    pairs: list[tuple[list[int], list[int]]], size: int
) -> None:
    metric = RougeScoreMetric(max_n=3)
    for start in range(0, len(pairs), size):
        chunk = pairs[start : start + size]
        metric(labels=[want for want, _ in chunk], predictions=[have for _, have in chunk])

    def f1_of(n: int, want: list[int], have: list[int]) -> float:
        wanted = Counter(tuple(want[i : i + n]) for i in range(len(want) - n + 1))
        given_ = Counter(tuple(have[i : i + n]) for i in range(len(have) - n + 1))
        common = sum(min(wanted[gram], given_[gram]) for gram in wanted)
        if not common:
            return 0.0
        precision, recall = common / sum(given_.values()), common / sum(wanted.values())
        return 2 * precision * recall / (precision + recall)

    score = metric.compute()
    assert isinstance(score, dict)
    for n in (1, 2, 3):
        expected = sum(f1_of(n, want, have) for want, have in pairs) / len(pairs)
        assert score[f"rouge{n}/f1"] == pytest.approx(expected, abs=1e-12)


def test_rouge_takes_texts_tokens_and_padded_ids_of_any_language() -> None:
    words, ids, single = RougeScoreMetric(), RougeScoreMetric(ignore_ids=[0]), RougeScoreMetric()
    words(["Große Äpfel, rote Äpfel", "да нет"], [["große", "äpfel"], ["да"]])
    ids(torch.tensor([[1, 2, 3, 2], [4, 5, 0, 0]]), torch.tensor([[1, 2, 0, 0], [4, 0, 0, 0]]))
    assert words.compute() == ids.compute()
    single("a b", "a b")
    assert set(single.compute().values()) == {1.0}  # type: ignore[union-attr]


def test_rouge_weights_leave_samples_out() -> None:
    metric, alone = RougeScoreMetric(), RougeScoreMetric()
    metric(["a b", "c"], ["a c", "d"], weights=torch.tensor([1, 0]))
    alone(["a b"], ["a c"])
    assert metric.compute() == alone.compute()


@pytest.mark.parametrize(
    ("labels", "predictions", "match"),
    [
        (["a"], ["a", "b"], "1 labels and 2 predictions"),
        ([1, 2], [1, 2], "labels that hold a int"),
        (None, ["a"], "labels that hold a NoneType"),
        ([[["a"]]], ["a"], "labels that hold a list"),
    ],
)
def test_rouge_refuses_what_it_cannot_compare(labels: Any, predictions: Any, match: str) -> None:
    with pytest.raises(UserError, match=match):
        RougeScoreMetric()(labels, predictions)


def test_empty_texts_score_zero() -> None:
    metric = RougeScoreMetric()
    metric(["", "a"], ["a", ""])
    assert set(metric.compute().values()) == {0.0}  # type: ignore[union-attr]


# -- registry and processes ------------------------------------------------------------------------------------


def _right(metric: Metric) -> None:
    metric(labels=[1], predictions=[1])


def test_metrics_that_saw_nothing_are_left_out_and_say_so() -> None:
    used, unused = AccuracyMetric("eval/accuracy"), MeanIOUMetric(3, "eval/iou")
    _right(used)
    masked = AccuracyMetric("eval/masked")
    masked([1], [1], weights=[0])
    said: list[str] = []
    assert compute_all_metrics(say=said.append) == {"eval/accuracy": 1.0}
    assert len(said) == 2
    assert "'eval/iou' has no value: it was never called" in said[0]
    assert "'eval/masked' has no value" in said[1]
    assert registered_metrics() == [used, unused, masked]


def test_a_training_and_an_evaluation_model_may_share_names() -> None:
    of_training, of_evaluation = AccuracyMetric("accuracy"), AccuracyMetric("accuracy")
    _right(of_evaluation)
    said: list[str] = []
    assert compute_all_metrics(say=said.append) == {"accuracy": 1.0}
    assert said == []
    of_training([0], [1])
    assert compute_all_metrics() == {"accuracy": 0.0, "accuracy_1": 1.0}


def test_several_values_are_reported_by_part() -> None:
    metric = RougeScoreMetric(1, "eval/rouge")
    metric(["a"], ["a"])
    assert compute_all_metrics()["eval/rouge/rougeL/f1"] == 1.0


def test_a_metric_of_a_dropped_model_reports_nothing() -> None:
    metric = AccuracyMetric("gone")
    _right(metric)
    del metric
    gc.collect()
    assert compute_all_metrics() == {}


def test_a_copied_model_brings_a_registered_metric() -> None:
    original = AccuracyMetric("accuracy")
    duplicate = copy.deepcopy(original)
    _right(duplicate)
    assert registered_metrics() == [original, duplicate]
    assert compute_all_metrics() == {"accuracy": 1.0}


def test_reset_and_clear() -> None:
    metric = AccuracyMetric()
    metric([0], [1])
    reset_all_metrics()
    _right(metric)
    assert compute_all_metrics() == {"AccuracyMetric": 1.0}
    clear_registry()
    assert registered_metrics() == []
    assert metric.compute() == 1.0


@pytest.mark.parametrize("kind", [*CLASS_METRICS, "rouge", "perplexity"])
def test_two_processes_report_what_one_would(kind: str) -> None:
    torch.manual_seed(1)
    make = {**CLASS_METRICS, "rouge": RougeScoreMetric, "perplexity": PerplexityMetric}[kind]
    one, ranks = make(), [make(), make(), make()]
    for rank, num_rows in enumerate([5, 2]):  # the third process sees no batch at all
        if kind == "perplexity":
            batch = (torch.zeros(num_rows), torch.rand(()))
        else:
            batch = tuple(torch.randint(NUM_CLASSES, (2, num_rows, 3)))
        one(*batch)
        ranks[rank](*batch)
    parts: list[list[Tensor]] = [[], [], []]
    for rank, metric in enumerate(ranks):
        metric.reduce(lambda total, rank=rank: parts[rank].append(total))  # type: ignore[misc]
    assert [p.shape for p in parts[0]] == [p.shape for p in parts[2]]
    for total, *others in zip(*parts, strict=True):  # the sum that a collective would leave everywhere
        summed = total + sum(others)
        for each in (total, *others):
            each.copy_(summed)
    for metric in ranks:
        assert metric.compute() == pytest.approx(one.compute(), rel=1e-12)


def test_reducing_does_not_count_a_process_twice() -> None:
    def of_two_equal_processes(total: Tensor) -> None:
        total.mul_(2)

    metric = AccuracyMetric("accuracy")
    metric([1, 1], [1, 0])
    assert compute_all_metrics(of_two_equal_processes) == {"accuracy": 0.5}
    metric([1, 1], [1, 1])
    assert compute_all_metrics(of_two_equal_processes) == {"accuracy": 0.75}
    assert float(metric._sums["total"]) == 4


def test_a_metric_of_ones_own_needs_three_methods() -> None:
    class Mean(Metric):
        def sum_shapes(self) -> dict[str, tuple[int, ...]]:
            return {"sum": (), "count": ()}

        def update(self, values: Tensor) -> None:
            self.add(sum=values.sum(), count=torch.tensor(values.numel()))

        def value(self, sums: Any) -> float:
            return float(sums["sum"] / sums["count"])

    mean = Mean("mean")
    mean(torch.tensor([1.0, 2.0]))
    mean(torch.tensor([6.0]))
    assert compute_all_metrics() == {"mean": 3.0}


def test_a_compiled_model_may_call_its_metrics() -> None:
    metric = AccuracyMetric()

    def step(labels: Tensor, logits: Tensor) -> Tensor:
        metric(labels=labels, predictions=logits.argmax(-1))
        return logits.sum()

    compiled = torch.compile(step, backend="eager")
    for _ in range(3):
        compiled(torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert metric.compute() == 0.5
    assert float(metric._sums["total"]) == 6


def test_a_metric_of_classes_is_made_on_a_device_whose_values_cannot_be_read() -> None:
    with torch.device("meta"):  # as a model is made for a compiled target
        metric = DiceCoefficientMetric(3, "dice_made_on_meta", ignore_classes=[0])
    metric(labels=torch.tensor([0, 1, 2, 1]), predictions=torch.tensor([0, 1, 2, 2]))
    assert metric.compute() == pytest.approx(2 / 3)
