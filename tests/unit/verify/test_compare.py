from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from made_recordings import SHAPES, make, with_step

from portwright.verify.compare import compare
from portwright.verify.compare_exact import initial_differences, option_differences, same_batch
from portwright.verify.diagnose import first_difference
from portwright.verify.measure import Noise, base_bound, measure
from portwright.verify.recording import Draw, Group, Match, ModuleOutput, Recording, Tensor, TensorDigest


def part(original, ported, perturbed=None):
    return first_difference(compare(original, ported, perturbed))


def test_a_recording_is_equal_to_itself_without_any_distance() -> None:
    comparison = compare(make(), make())
    assert first_difference(comparison) is None
    assert all(h.measure.distance == 0 for h in comparison.checked)
    assert {h.measure.quantity for h in comparison.checked} == {"loss", "gradient", "update"}


@pytest.mark.parametrize(
    ("changes", "step", "quantity", "parameter", "diagnosis"),
    [
        ({"lr": 0.101}, 1, "optimizer", "first.weight", "learning-rate"),
        ({"lr": 0.101, "says_lr": False}, 1, "update", "first.weight", "learning-rate"),
        ({"decay": 0.01}, 1, "update", "first.weight", "weight-decay"),
        ({"factor": 1.01}, 1, "gradient", "last.bias", "gradient-scale"),
        ({"factor": 4.0}, 1, "gradient", "last.bias", "accumulation"),
        ({"keeps_gradient": True}, 2, "gradient", "last.bias", "zero-grad"),
        ({"frozen": "first.bias"}, 1, "gradient", "first.bias", "detached"),
        ({"shift": 1}, 1, "batch", None, "batch-shifted"),
        ({"draws": (Draw("dropout", 0.1, 32),)}, None, None, None, None),
    ],
)
def test_what_differs_is_named(changes, step, quantity, parameter, diagnosis) -> None:
    found = part(make(), make(**changes))
    if step is None:  # drawn alike, as every number says
        assert found is None
        return
    assert found is not None
    assert (found.step, found.quantity, found.parameter, found.diagnosis) == (
        step,
        quantity,
        parameter,
        diagnosis,
    )


def test_dropout_that_is_off_is_compared_by_rate_and_size() -> None:
    a = replace(make(draws=(Draw("dropout", 0.1, 64),)), dropout="off")
    cut = replace(make(draws=(Draw("dropout", 0.1, 32), Draw("native_dropout", 0.1, 32))), dropout="off")
    other = replace(make(draws=(Draw("dropout", 0.2, 64),)), dropout="off")
    assert part(a, cut) is None
    assert part(a, replace(make(), dropout="off")).diagnosis == "dropout-lost"
    assert part(a, other).diagnosis == "dropout-rate"
    assert part(a, replace(make(draws=(Draw("dropout", 0.0, 9), *a.steps[0].draws)), dropout="off")) is None


def test_rounding_passes_by_measured_noise_and_a_fault_of_its_size_does_not_hide() -> None:
    original, ported, perturbed = make(), make(noise=3e-5), make(noise=2e-5)
    assert part(original, ported) is not None
    comparison = compare(original, ported, perturbed)
    assert first_difference(comparison) is None
    assert {h.bound.decided_by for h in comparison.checked} == {"noise"}
    assert part(original, make(factor=1.01), perturbed) is not None


def test_noise_at_a_step_is_the_largest_until_then_and_at_least_the_typical_one() -> None:
    found = measure(make(), make(noise=1e-4))
    noise = Noise.of(found, 1e-4)
    per_step = [noise.at("gradient", "first.weight", s) for s in range(1, 7)]
    assert per_step == sorted(per_step)
    assert noise.at("gradient", "unknown", 3) > 0
    assert noise.at("buffer", "unknown", 3) == 0


def test_a_tolerance_grows_with_the_dtype_and_the_steps() -> None:
    assert (
        base_bound("loss", 1, "float64")
        < base_bound("loss", 1, "float32")
        < base_bound("loss", 1, "bfloat16")
    )
    assert base_bound("loss", 9, "torch.float32") == 9 * base_bound("loss", 1, "float32")


def test_a_lost_parameter_counts_only_when_it_was_trained() -> None:
    original, ported = make(), make()
    ported.missing = ["first.bias"]
    ported.matches = [m for m in ported.matches if m.original != "first.bias"]
    found = part(original, ported)
    assert (found.quantity, found.parameter, found.diagnosis) == ("parameter", "first.bias", "parameter-lost")
    for index in range(1, 7):
        del original.arrays[f"gradient/{index}/first.bias"]
    assert part(original, ported) is None


def test_lost_statistics_count_only_when_the_steps_move_them() -> None:
    original, ported = make(), make()
    name = "norm.running_mean"
    original.tensors.append(Tensor(name, (4,), "float32", "buffer", 0.0, 0.0))
    ported.missing = [name]
    original.arrays[f"initial/{name}"] = np.zeros(64)
    for index in range(1, 7):
        original.arrays[f"weight/{index}/{name}"] = np.zeros(64)
    assert part(original, ported) is None
    original.arrays[f"weight/3/{name}"] = np.ones(64)
    found = part(original, ported)
    assert found is not None
    assert (found.quantity, found.parameter, found.diagnosis) == ("buffer", name, "statistics-lost")


def test_a_parameter_that_the_port_adds_is_named() -> None:
    ported = make()
    ported.unmatched = ["extra"]
    ported.tensors.append(Tensor("extra", (4,), "float32", "parameter", 0.0, 0.0))
    assert part(make(), ported) is None
    ported.arrays["gradient/2/extra"] = np.ones(64)
    found = part(make(), ported)
    assert (found.step, found.parameter, found.diagnosis) == (2, "extra", "parameter-added")


def initial(deviation: float, mean: float = 0.0, size: int = 4096, kind: str = "parameter") -> Tensor:
    return Tensor("first.weight", (size,), "float32", kind, mean, deviation)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mine", "theirs", "differs"),
    [
        (initial(0.1), initial(0.101), False),
        (initial(0.1), initial(0.12), True),
        (initial(0.1), initial(0.0), True),
        (initial(0.1), initial(0.1, mean=0.02), True),
        (initial(0.1, size=4), initial(0.2, size=4), False),
        (initial(0.0, mean=1.0), initial(0.0, mean=1.0), False),
        (initial(0.0, mean=1.0), initial(0.0, mean=0.0), True),
        (initial(0.5, kind="buffer"), initial(0.5001, kind="buffer"), True),
    ],
)
def test_another_initialisation_is_told_from_another_draw(
    mine: Tensor, theirs: Tensor, differs: bool
) -> None:
    original, ported = make(), make()
    original.tensors[0], ported.tensors[0] = mine, theirs
    assert not initial_differences(original, ported)  # identical values: nothing was drawn otherwise
    ported.matches[0] = replace(ported.matches[0], initial="copied")
    assert bool(initial_differences(original, ported)) is differs


def test_fused_tensors_are_held_against_their_parts_together() -> None:
    original, ported = make(), make()
    original.tensors = [
        Tensor(n, (64, 64), "float32", "parameter", 0.0, d) for n, d in (("q", 0.1), ("k", 0.1), ("v", 0.2))
    ]
    whole = math.sqrt((0.1**2 + 0.1**2 + 0.2**2) / 3)
    ported.matches = [Match(n, ("qkv",), "rows of", "values", "copied") for n in "qkv"]
    ported.tensors = [Tensor("qkv", (192, 64), "float32", "parameter", 0.0, whole)]
    assert not initial_differences(original, ported)
    ported.tensors = [Tensor("qkv", (192, 64), "float32", "parameter", 0.0, 0.1)]
    assert initial_differences(original, ported)[0].name == "q"


def digest(name: str, size: int = 4, total: float = 1.0) -> TensorDigest:
    return TensorDigest((size,), "float32", total, total * total, name)


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        ("ab", "ab", True),
        ("ab", "ba", True),
        ("ab", "abm", True),  # the port made a mask as well
        ("abi", "ab", True),  # nobody reads the indices
        ("ab", "ac", False),
        ("", "ab", True),
        ("aa", "ab", False),
    ],
)
def test_batches_are_sets_of_tensors(mine: str, theirs: str, same: bool) -> None:
    steps = [
        replace(make().steps[0], batch=tuple(digest(c, total=1.0 + ord(c)) for c in side))
        for side in (mine, theirs)
    ]
    assert same_batch(*steps) is same


def test_a_batch_in_parts_is_the_same_batch() -> None:
    whole = TensorDigest((8,), "float32", 6.0, 14.0, "whole")
    parts = (TensorDigest((4,), "float32", 2.0, 4.0, "one"), TensorDigest((4,), "float32", 4.0, 10.0, "two"))
    step = make().steps[0]
    assert same_batch(replace(step, batch=(whole,)), replace(step, batch=parts))
    assert not same_batch(replace(step, batch=(whole,)), replace(step, batch=parts[:1]))


def test_what_a_rounding_changes_is_no_data() -> None:
    """A generator's output is fed to its critic: it differs by the generator's fault, and the data does not."""
    step = make().steps[0]
    mine = replace(step, batch=(digest("real", total=1.0), digest("made", total=2.0)))
    theirs = replace(step, batch=(digest("real", total=1.0), digest("made otherwise", total=2.5)))
    perturbed = replace(step, batch=(digest("real", total=1.0), digest("made with a rounding", total=2.1)))
    assert not same_batch(mine, theirs)
    assert same_batch(mine, theirs, perturbed)
    shifted = replace(step, batch=(digest("next", total=4.0), digest("made otherwise", total=2.5)))
    assert not same_batch(mine, shifted, perturbed)


def test_another_batch_that_changes_no_number_is_no_difference() -> None:
    assert part(make(), with_step(make(), 3, batch=(digest("read by nobody"),))) is None


def test_options_of_another_class_only_explain() -> None:
    changed = with_step(make(), 2, groups=(Group(tuple(SHAPES), {"lr": 0.1, "eps": 1.0}),), optimizer="Other")
    assert part(make(), changed) is None
    found = part(make(), make(lr=0.2))
    assert found.option == "lr"
    assert found.parameters == tuple(SHAPES)


def test_ways_to_compute_the_same_are_no_options() -> None:
    mine = make().steps[0]
    theirs = replace(
        mine, groups=(Group(tuple(SHAPES), {"lr": 0.1 + 1e-12, "foreach": True, "momentum": None}),)
    )
    assert option_differences(mine, theirs, make()) == []


def test_groups_may_be_cut_otherwise_and_a_parameter_in_another_group_is_named() -> None:
    names = tuple(SHAPES)
    base = dict(make().steps[0].groups[0].options)
    cut = (Group(names[:2], base), Group(names[2:], base))
    assert part(make(), with_step(make(), 1, groups=cut)) is None
    other = (Group(names[:2], base), Group(names[2:], {**base, "weight_decay": 0.1}))
    found = part(make(), with_step(make(), 1, groups=other))
    assert (found.option, found.parameter, found.original, found.ported) == (
        "weight_decay",
        "last.weight",
        0.0,
        0.1,
    )


def test_losses_are_compared_one_by_one_or_by_their_sum() -> None:
    original = with_step(make(), 1, losses=(1.0, 2.0))
    assert part(original, with_step(make(), 1, losses=(3.0,))) is None
    assert part(original, with_step(make(), 1, losses=(2.0, 1.0))).quantity == "loss"
    assert part(original, with_step(make(), 1, losses=(3.1,))).quantity == "loss"


def test_another_number_of_backward_passes_is_named() -> None:
    found = part(with_step(make(), 1, losses=(1.0, 2.0)), with_step(make(), 1, losses=(1.0,)))
    assert (found.step, found.diagnosis, found.original, found.ported) == (1, "accumulation", 2, 1)
    assert "1 backward pass," in found.reason


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.inf, False),
        (math.inf, math.inf, True),
        (0.0, 0.0, True),
    ],
)
def test_losses_that_are_no_numbers(mine: float, theirs: float, same: bool) -> None:
    found = part(with_step(make(), 2, losses=(mine,)), with_step(make(), 2, losses=(theirs,)))
    assert (found is None) is same
    if found is not None:
        assert found.step == 2
        assert "NaN" not in str(found.as_dict())


def test_gradients_that_are_no_numbers() -> None:
    broken = make()
    broken.arrays["gradient/2/last.bias"] = np.full(64, np.nan)
    assert part(make(), broken).parameter == "last.bias"
    assert part(broken, broken) is None


def test_a_port_that_ends_earlier_is_not_equal_and_one_that_goes_on_is() -> None:
    assert part(make(6), make(4)).quantity == "steps"
    assert part(make(6), make(4)).step == 5
    assert part(make(4), make(6)) is None


def test_the_first_module_that_differs_is_named_with_its_line() -> None:
    original, ported = make(), make()
    outputs = ported.steps[2].outputs
    changed = with_step(ported, 3, losses=(9.0,), outputs=(outputs[0], replace(outputs[1], square=5.0)))
    found = part(original, changed)
    assert (found.step, found.quantity, found.module, found.parameter, found.line) == (
        3,
        "loss",
        "last",
        "last.weight",
        "net.py:6",
    )
    assert "first" in found.reason


def test_a_loss_that_alone_differs_is_the_loss_function() -> None:
    found = part(make(), with_step(make(), 3, losses=(9.0,)))
    assert (found.step, found.diagnosis, found.parameter) == (3, "loss-function", "last.bias")


@pytest.mark.parametrize(
    ("called", "module", "parameter", "words"),
    [
        ((), "", list(SHAPES)[-1], "of the model (Net) around them does not"),
        (("<MSELoss>",), "", list(SHAPES)[-1], "of the model (Net) around them does not"),
    ],
)
def test_what_a_model_does_behind_its_last_layer_is_not_the_loss_function(
    called: tuple[str, ...], module: str, parameter: str, words: str
) -> None:
    original = with_model(make(), called, scale=1.0)
    ported = with_model(with_step(make(), 1, losses=(original.steps[0].losses[0] * 1.07,)), called, scale=1.1)
    found = part(original, ported)
    assert found is not None
    assert (found.step, found.quantity, found.module, found.parameter) == (1, "loss", module, parameter)
    assert found.diagnosis == "forward"
    assert words in found.reason


def test_a_model_without_layers_is_looked_at_itself() -> None:
    original, ported = make(), with_step(make(), 1, losses=(make().steps[0].losses[0] * 1.07,))
    one, other = (
        with_step(r, 1, outputs=(ModuleOutput("", "Net", 8, 1.0, square), ModuleOutput("<MSELoss>", "MSELoss", 1, 1.0, 1.0)))
        for r, square in ((original, 4.0), (ported, 5.0))
    )  # fmt: skip
    found = part(one, other)
    assert found is not None
    assert (found.diagnosis, found.module) == ("forward", "")
    assert "that of the model (Net)" in found.reason


def with_model(recording: Recording, called: tuple[str, ...], scale: float) -> Recording:
    """The first step's layers with a model around them, and losses called behind it."""
    loss = 4.0
    behind = [ModuleOutput(name, "Loss", 1, 1.0, 1.0) for name in called]
    outputs = (*make().steps[0].outputs, ModuleOutput("", "Net", 16, loss * scale, loss * scale**2), *behind)
    return with_step(recording, 1, outputs=outputs)


def test_a_tensor_with_no_true_gradient_does_not_raise_an_alarm() -> None:
    """A bias before batch normalisation holds the rounding of the others, which is no two times the same."""
    original, ported = make(), make()
    for recording, seed in ((original, 1), (ported, 2)):
        random = np.random.default_rng(seed)
        for index in range(1, 7):
            recording.arrays[f"gradient/{index}/first.bias"] = 1e-9 * random.standard_normal(64)
    assert not compare(original, ported).beyond(1, "gradient")


def test_an_output_whose_loss_agrees_is_named_as_such() -> None:
    ported = make(factor=1.01)
    outputs = ported.steps[0].outputs
    found = part(
        make(),
        with_step(ported, 1, outputs=(outputs[0], replace(outputs[1], square=outputs[1].square * 1.1))),
    )
    assert (found.step, found.quantity, found.module, found.parameter) == (1, "output", "last", "last.weight")
    assert found.distance > found.bound
    assert found.ported > found.original
