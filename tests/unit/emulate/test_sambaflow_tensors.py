"""SambaTensors: names survive casts, memory is shared, and bad names are refused."""

from __future__ import annotations

import pytest
import torch

from portwright.emulate.sambaflow import samba
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow.samba.sambaloader import SambaLoader


def test_a_name_survives_casts_and_nothing_else() -> None:
    image = samba.randn(4, 3, name="image", batch_dim=0).bfloat16().float()
    assert (image.sn_name, image.batch_dim, image.dtype) == ("image", 0, torch.float32)
    assert image.to(torch.bfloat16).sn_name == "image"
    assert (image + 1).sn_name is None
    assert image[0].sn_name is None
    assert image.reshape(12).batch_dim is None


def test_memory_is_shared_with_the_tensor_it_is_made_from() -> None:
    plain = torch.zeros(2)
    named = samba.from_torch_tensor(plain, name="x")
    plain += 1
    assert named.tolist() == [1.0, 1.0]
    back = samba.to_torch(named)
    assert type(back) is torch.Tensor
    assert back.data_ptr() == plain.data_ptr()


def test_to_torch_goes_through_trees_and_leaves_the_rest() -> None:
    one = samba.ones(1, name="one")
    assert type(samba.to_torch({"a": [one]})["a"][0]) is torch.Tensor
    assert samba.to_torch(3) == 3


def test_factories_have_torchs_forms() -> None:
    assert samba.randint(10, (6,), name="label", batch_dim=0).shape == (6,)
    assert samba.randint(3, 5, (6,), name="label").min() >= 3
    assert samba.zeros((2, 3), name="z").shape == (2, 3)
    assert samba.rand([2, 1], name="r").shape == (2, 1)
    assert samba.zeros(2, dtype=torch.int32).dtype == torch.int32
    assert [t.sn_name for t in samba.from_named_dict({"a": torch.ones(1), "b": torch.ones(1)})] == ["a", "b"]
    assert samba.SambaTensor(shape=(2, 2), dtype=torch.bfloat16, name="e").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": 3}, "name is 3"),
        ({"name": "x", "batch_dim": 2}, "batch_dim=2"),
        ({"name": "x", "batch_dim": True}, "batch_dim is True"),
        ({"name": "x", "region_name": "r"}, "region_name"),
    ],
)
def test_bad_marks_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(SambaFlowError, match=said):
        samba.from_torch_tensor(torch.ones(2, 2), **options)  # type: ignore[arg-type]


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(SambaFlowError, match="got list"):
        samba.from_torch_tensor([1.0], name="x")  # type: ignore[arg-type]
    with pytest.raises(SambaFlowError, match="neither"):
        samba.SambaTensor(name="x")


def test_addmm_takes_its_matrix_transposed() -> None:
    bias, x, weight = torch.randn(4), torch.randn(2, 3, 8), torch.randn(4, 8)
    torch.testing.assert_close(
        samba.addmm(bias, x, weight, is_transposed=True), torch.nn.functional.linear(x, weight, bias)
    )
    with pytest.raises(SambaFlowError, match="alpha=2"):
        samba.addmm(bias, x, weight, alpha=2, is_transposed=True)


def test_a_loader_names_the_tensors_of_its_batches() -> None:
    batches = [(torch.ones(2, 3), torch.zeros(2, dtype=torch.long))]
    loader = SambaLoader(batches, ["image", "label"])
    assert len(loader) == 1
    ((image, label),) = list(loader)
    assert (image.sn_name, label.sn_name, image.batch_dim) == ("image", "label", 0)
    named, original = next(
        iter(SambaLoader(batches, ["image"], function_hook=lambda b: [b[0]], return_original_batch=True))
    )
    assert named[0].sn_name == "image"
    assert original is batches[0]
    with pytest.raises(SambaFlowError, match="2 tensor"):
        list(SambaLoader(batches, ["image"]))


def test_converted_parameters_have_the_vendors_names() -> None:
    linear = torch.nn.Linear(10, 10)
    kept = linear.weight
    samba.from_torch_model_(linear)
    assert (linear.name, linear.weight.sn_name) == ("linear", "linear__weight")
    assert linear.weight is kept
    assert isinstance(linear.weight, samba.SambaParameter)
    samba.from_torch_(linear)  # again, by its older name
    assert linear.weight.sn_name == "linear__weight"
    with pytest.raises(SambaFlowError, match=r"not an nn\.Module"):
        samba.from_torch_model_(torch.ones(1))  # type: ignore[arg-type]
