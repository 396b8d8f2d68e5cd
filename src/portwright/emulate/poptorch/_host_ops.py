"""Ops that leave the device: printing, functions of the host, operations that users wrote in C++ (names as in `poptorch.ops`).

They are ops of torch, `poptorch::...`, so that the frozen program does them at every run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable as AnyCallable
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor

from portwright.emulate.poptorch import _active, _custom, _impl
from portwright.emulate.poptorch._expect import expect_tensor
from portwright.emulate.poptorch._printed import FORMATS, format_tensor
from portwright.emulate.poptorch._refused import partly

_library = torch.library.Library("poptorch", "FRAGMENT")
_library.define(
    "ipu_print_tensor(Tensor self, str title, int print_gradient, int summarise_threshold, int edge_items, int max_line_width, "
    "int digits, str float_format, str separator, str open_bracket, str close_bracket) -> Tensor"
)
_library.define("call_cpu_op(Tensor[] inputs, str name, int num_outputs) -> Tensor[]")


def _print(tensor: Tensor, title: str, print_gradient: int, *layout: Any) -> Tensor:
    text = format_tensor(tensor.detach(), title, *layout)
    print(text, file=sys.stderr, flush=True)
    return tensor.clone()


class _PrintWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor, *settings: Any) -> Tensor:
        context.settings = settings
        with torch._C._AutoDispatchBelowAutograd():
            printed: Tensor = torch.ops.poptorch.ipu_print_tensor.default(tensor, *settings)
        return printed

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        title, prints, *layout = context.settings
        gradient = gradients[0]
        if prints:
            gradient = torch.ops.poptorch.ipu_print_tensor.default(gradient, f"{title}_gradient", 0, *layout)
        return (gradient, *[None] * len(context.settings))


def _print_autograd(tensor: Tensor, *settings: Any) -> Any:
    return _PrintWithGradient.apply(tensor, *settings)


_library.impl("ipu_print_tensor", _print, "CompositeExplicitAutograd")
_library.impl("ipu_print_tensor", _print_autograd, "Autograd")


def ipu_print_tensor(
    tensor: "torch.Tensor",
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> "torch.Tensor":
    """Prints a tensor at every run of the program, and its gradient; what it gives back must be used."""
    expect_tensor("what is given to ipu_print_tensor", tensor)
    if float_format not in FORMATS:
        raise _impl.createPoptorchError(
            f"ipu_print_tensor has the formats {', '.join(FORMATS)}, not {float_format!r}."
        )
    if _active.current() is None:
        return tensor
    settings = (
        title,
        int(print_gradient),
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
    )
    printed: Tensor = torch.ops.poptorch.ipu_print_tensor(
        tensor, *settings, separator, open_bracket, close_bracket
    )
    return printed


_on_cpu: dict[str, CPU] = {}  # by name, as the real binding keeps them


def _call_cpu(inputs: list[Tensor], name: str, num_outputs: int) -> list[Tensor]:
    operation = _on_cpu.get(name)
    if operation is None:
        raise _impl.createPoptorchError(
            f"the program calls the CPU op '{name}', which this process does not have. Make the model, and with it "
            f"poptorch.CPU(function, '{name}'), before the program is loaded."
        )
    with _Unwatched():
        operation.inputs = [tensor.detach().clone() for tensor in inputs]
        operation.execute()
    results = [tensor.clone() for tensor in operation.outputs]
    if len(results) != num_outputs:
        raise _impl.createPoptorchError(
            f"the CPU op '{name}' gives {len(results)} tensors, and gave {num_outputs} when it was compiled."
        )
    return results


_library.impl("call_cpu_op", _call_cpu, "CompositeExplicitAutograd")


class _Unwatched:
    """What the host computes in a CPU op is none of the program's business."""

    def __enter__(self) -> None:
        self._watch = _active.current()
        if self._watch is not None:
            self._was, self._watch.is_paused = self._watch.is_paused, True

    def __exit__(self, *error: Any) -> None:
        if self._watch is not None:
            self._watch.is_paused = self._was


class CPU:
    """Calls a function on the host in the middle of an inference model, at every run."""

    def __init__(self, layer_to_call: Callable, ID: str):  # type: ignore[type-arg]
        if not callable(layer_to_call):
            raise _impl.createPoptorchError(
                f"poptorch.CPU takes a function or module, not {layer_to_call!r}."
            )
        if not isinstance(ID, str) or not ID:
            raise _impl.createPoptorchError(f"the ID of a poptorch.CPU is a name, not {ID!r}.")
        self._layer_to_call: AnyCallable[..., Any] = layer_to_call
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._ID = ID
        self.in_shapes: Any = None
        self.out_shapes: Any = None
        self.inputs: Any = None
        self.outputs: Any = None

    def execute(self):
        """Calls the function on `inputs`, and keeps what it gives in `outputs`."""
        with torch.no_grad():
            given = self._layer_to_call(*self.inputs)
        self.outputs = list(given) if isinstance(given, (list, tuple)) else [given]
        for tensor in self.outputs:
            expect_tensor(f"what the CPU op '{self._ID}' gives", tensor)

    def registerPersistentData(self):
        """Makes room for what goes in and out."""
        self.inputs = [torch.zeros(shape) for shape in self.in_shapes]
        self.outputs = [torch.zeros(shape) for shape in self.out_shapes]

    def __call__(self, *input, **kwargs):
        watch = _active.current()
        if watch is None:
            return self._layer_to_call(*input, **kwargs)
        if watch.training:
            raise watch.refuse_here(
                f"the CPU op '{self._ID}' in a training model: poptorch.CPU is only supported in inference"
            )
        if watch.is_paused:
            raise watch.refuse_here(
                f"the CPU op '{self._ID}' inside of another one. CPU ops must not overlap"
            )
        for number, tensor in enumerate(input):
            expect_tensor(f"argument {number} of the CPU op '{self._ID}'", tensor)
        if kwargs:
            raise watch.refuse_here(
                f"the CPU op '{self._ID}' is called with {', '.join(kwargs)} by name. Give tensors only, in order"
            )
        with _Unwatched():  # the first call only says how many tensors it gives, and of which shapes
            self.inputs = [torch.zeros_like(tensor) for tensor in input]
            self.execute()
        is_single = len(self.outputs) == 1 and not isinstance(self._example(), (list, tuple))
        self.in_shapes = [tensor.shape for tensor in input]
        self.out_shapes = [tensor.shape for tensor in self.outputs]
        _on_cpu[self._ID] = self
        with torch.no_grad():
            results = torch.ops.poptorch.call_cpu_op([*input], self._ID, len(self.outputs))
        return results[0] if is_single else results

    def _example(self) -> Any:
        with _Unwatched(), torch.no_grad():
            return self._layer_to_call(*self.inputs)


@partly(
    "operations of C++ are refused; a stand-in in Python can be given by _custom.register(name, domain, function)."
)
def custom_op(
    inputs: Tuple["torch.Tensor"],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Tuple["torch.Tensor"],
    attributes: Optional[Dict[str, Union[float, int, str, list, tuple]]] = None,  # type: ignore[type-arg]
) -> List["torch.Tensor"]:
    """An operation that users wrote in C++ for the IPU, or its stand-in."""
    _check_attributes(attributes or {})
    function = _custom.find(name, domain)
    if function is None:
        known = ", ".join(_custom.registered())
        raise _impl.createPoptorchError(
            f"custom_op {domain}.{name} is not emulated by Portwright: it is compiled C++ for an IPU. Say what it computes with "
            f"portwright.emulate.poptorch._custom.register({name!r}, {domain!r}, function)."
            + (f" Registered: {known}." if known else "")
        )
    with _active.trusted():
        given = function(*inputs, **(attributes or {}))
    outputs = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(outputs) != len(example_outputs):
        raise _impl.createPoptorchError(
            f"the stand-in of {domain}.{name} gives {len(outputs)} tensors, and the model expects {len(example_outputs)}."
        )
    for number, (output, example) in enumerate(zip(outputs, example_outputs, strict=True)):
        if output.shape != example.shape or output.dtype != example.dtype:
            raise _impl.createPoptorchError(
                f"the stand-in of {domain}.{name} gives {output.dtype} {list(output.shape)} as output {number}, and the model expects "
                f"{example.dtype} {list(example.shape)}."
            )
    return outputs


def _check_attributes(attributes: Any) -> None:
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"the attributes of a custom_op have names, and {key!r} is none.")
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        for one in values:
            if not isinstance(one, (float, int, str)):
                raise ValueError(
                    f"the attribute {key} is {value!r}. It may be a float, int, str, or a list of one of these."
                )
            if not isinstance(one, type(values[0])):
                raise ValueError(f"the attribute {key} mixes types: {value!r}.")
        for text in (key, *values):
            if isinstance(text, str) and not text.isascii():
                raise ValueError(f"the attribute {key} contains characters that are not ASCII: {text!r}.")
