"""Infers the kinds of values (tensor, module, number, ...) in a file without running it."""

from __future__ import annotations

import ast
from typing import Literal

from portwright.port.names import Names
from portwright.port.tree import Binding, Tree, is_method_call, is_name, words

Kind = Literal[
    "tensor", "module", "optimizer", "scheduler", "loader", "device", "number", "text", "shape", "dtype", "scaler", "executor"
]  # fmt: skip


_MAX_DEPTH = 14
STEP_METHODS = ("forward", "training_step", "forward_step")  # methods of an nn.Module that a step runs
_NOT_TENSOR_FUNCTIONS = words("""
        device manual_seed save load no_grad enable_grad inference_mode set_grad_enabled is_tensor
        is_grad_enabled numel compile set_default_dtype set_default_device get_default_dtype
        set_num_threads get_num_threads finfo iinfo Size set_printoptions set_float32_matmul_precision
        set_default_tensor_type use_deterministic_algorithms Generator typename is_floating_point
        is_complex broadcast_shapes result_type can_cast promote_types initial_seed seed dtype autocast
        split chunk unbind topk sort meshgrid tensor_split lstm gru is_storage
        """)
_NOT_TENSOR_METHODS = words("""
        item tolist numpy size dim numel nelement backward get_device is_floating_point split chunk
        unbind topk sort type element_size storage data_ptr is_contiguous stride register_hook shape
        keys values items append
        """)
_NUMBERS = ("len", "int", "float", "round", "bool")
_NUMBER_METHODS = words("item dim numel nelement ndimension __len__")
_TENSOR_ATTRIBUTES = words("data grad T mT H real imag")
_TEXT_METHODS = words("format join lower upper strip")
_MODULE_METHODS = words("to cuda cpu train eval half float double bfloat16 requires_grad_")
_RESULTS: dict[str, Kind] = {
    "poptorch.trainingModel": "executor", "poptorch.inferenceModel": "executor", "poptorch.DataLoader": "loader",
    "torch.utils.data.DataLoader": "loader", "torch.device": "device", "torch.amp.GradScaler": "scaler",
    "torch.nn.Parameter": "tensor", "torch.autograd.Variable": "tensor", "torch.from_numpy": "tensor",
    "torch.as_tensor": "tensor", "torch.nn.parallel.DataParallel": "module", "torch.nn.parallel.DistributedDataParallel": "module",
}  # fmt: skip


class Kinds:
    """Kinds of expressions, inferred when a rule asks."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self.tree = tree
        self.names = names
        self._kinds: dict[ast.AST, Kind | None] = {}

    def kind(self, node: ast.expr | None, depth: int = 0) -> Kind | None:
        """The kind of a value; None if unknown."""
        if node is None or depth > _MAX_DEPTH:
            return None
        if node not in self._kinds:
            self._kinds[node] = None  # ends recursion in a value that depends on itself
            self._kinds[node] = self._kind(node, depth + 1)
        return self._kinds[node]

    def is_tensor(self, node: ast.expr | None) -> bool:
        return self.kind(node) == "tensor"

    def _kind(self, node: ast.expr, depth: int) -> Kind | None:
        match node:
            case ast.Constant(int() | float()):
                return "number"
            case ast.Constant(str() | bytes()) | ast.JoinedStr():
                return "text"
            case ast.Call():
                return self._kind_of_call(node, depth)
            case ast.Attribute():
                return self._kind_of_attribute(node, depth)
            case ast.Name():
                return self._kind_of_name(node, depth)
        if isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                return None  # a dictionary
            base = self.kind(node.value, depth)
            if base == "shape":
                return "shape" if isinstance(node.slice, ast.Slice) else "number"
            return "tensor" if base == "tensor" else None
        if isinstance(node, ast.BinOp):
            sides = {self.kind(node.left, depth), self.kind(node.right, depth)}
            return "tensor" if "tensor" in sides else "number" if sides == {"number"} else None
        if isinstance(node, ast.UnaryOp):
            return self.kind(node.operand, depth) if not isinstance(node.op, ast.Not) else "number"
        if isinstance(node, ast.Compare):
            if all(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
                return "number"
            sides = {self.kind(side, depth) for side in (node.left, *node.comparators)}
            return "tensor" if "tensor" in sides else None
        if isinstance(node, ast.IfExp):
            kinds = {self.kind(node.body, depth), self.kind(node.orelse, depth)}
            return kinds.pop() if len(kinds) == 1 else None
        return None

    def _kind_of_call(self, node: ast.Call, depth: int) -> Kind | None:
        dotted = self.names.resolve(node.func)
        if dotted is not None:
            return self._kind_of_result(dotted)
        if isinstance(node.func, ast.Name) and node.func.id in _NUMBERS:
            return "number" if self.tree.scope_of(node.func).lookup(node.func.id) is None else None
        if isinstance(node.func, ast.Attribute):
            method = node.func.attr
            receiver = self.kind(node.func.value, depth)
            if receiver == "tensor":
                if method == "size":
                    return "number" if node.args else "shape"
                if method in _NUMBER_METHODS:
                    return "number"
                return None if method in _NOT_TENSOR_METHODS else "tensor"
            if receiver == "module":
                return "module" if method in _MODULE_METHODS else None
            if receiver == "text" and method in _TEXT_METHODS:
                return "text"
            if receiver == "executor":
                return "executor" if method in ("train", "eval") else None
        return "tensor" if self.kind(node.func, depth) == "module" else None

    def _kind_of_result(self, dotted: str) -> Kind | None:
        if "::" in dotted:
            return "module" if self.names.is_module_class(dotted) else None
        if dotted in _RESULTS:
            return _RESULTS[dotted]
        head, _, last = dotted.rpartition(".")
        if head == "torch.optim.lr_scheduler":
            return "scheduler"
        if head == "torch.optim" and last[:1].isupper():
            return "optimizer"
        if self.names.is_module_class(dotted):
            return "module"
        if head == "torch" and last.endswith("Tensor"):
            return "tensor"
        if (
            head in ("torch", "torch.nn.functional", "torch.linalg", "torch.special")
            and last not in _NOT_TENSOR_FUNCTIONS
        ):
            return "tensor" if last[:1].islower() and not last.startswith(("is_", "get_", "set_")) else None
        return None

    def _kind_of_attribute(self, node: ast.Attribute, depth: int) -> Kind | None:
        if is_name(node.value, "self"):
            values = self.tree.attribute_values(node)
            kinds = {self.kind(value, depth) for value in values if not _is_none(value)}
            return kinds.pop() if len(kinds) == 1 else None
        dotted = self.names.resolve(node)
        if dotted is not None and dotted.startswith("torch."):
            return "dtype" if dotted.count(".") == 1 else None
        base = self.kind(node.value, depth)
        if base == "tensor":
            if node.attr == "shape":
                return "shape"
            if node.attr in ("device", "dtype"):
                return node.attr  # type: ignore[return-value]
            if node.attr in ("ndim", "is_cuda", "requires_grad"):
                return "number"
            return "tensor" if node.attr in _TENSOR_ATTRIBUTES else None
        if base == "module" and node.attr in ("weight", "bias"):
            return "tensor"
        return None

    def _kind_of_name(self, node: ast.Name, depth: int) -> Kind | None:
        kinds = set()
        for binding in self.tree.bindings(node):
            if binding.kind == "other" or (binding.kind == "assign" and _is_none(binding.value)):
                continue
            counter = _counter(binding)
            is_counted = counter is not None and is_name(counter, node.id)
            kinds.add("number" if is_counted else self._kind_of_binding(binding, depth))
        if kinds == {"tensor", None}:
            return "tensor"  # what is computed from a tensor is taken for one
        return kinds.pop() if len(kinds) == 1 else None

    def _kind_of_binding(self, binding: Binding, depth: int) -> Kind | None:
        match binding:
            case Binding("assign"):
                return self.kind(binding.value, depth)
            case Binding("parameter"):
                return self._kind_of_parameter(binding, depth)
            case Binding("unpack", value=ast.expr() as value):
                return "number" if self.kind(value, depth) == "shape" else self._kind_of_part(value)
            case Binding("iterate", value=ast.expr()):
                return self._kind_of_item(binding, depth)
        return None

    def _kind_of_part(self, value: ast.expr) -> Kind | None:
        """The kind of the parts of a returned tuple: values and indices, chunks, or an output and its state."""
        if isinstance(value, ast.Call):
            dotted = self.names.resolve(value.func) or ""
            is_torchs = dotted.startswith("torch.")
            if is_torchs and dotted.rpartition(".")[2] in _NOT_TENSOR_FUNCTIONS | {"max", "min", "median"}:
                return "tensor"
            if is_method_call(value, "max", "min", "chunk", "split", "topk", "sort", "unbind"):
                return "tensor" if self.kind(value.func.value) == "tensor" else None
            if self.kind(value.func) == "module":
                return "tensor"
        return None

    def _kind_of_parameter(self, binding: Binding, depth: int) -> Kind | None:
        argument = binding.node
        if not isinstance(argument, ast.arg):
            return None
        if argument.annotation is not None:
            annotated = self.names.resolve(argument.annotation)
            if annotated in ("torch.Tensor", "torch.FloatTensor", "torch.LongTensor"):
                return "tensor"
            if annotated is not None or isinstance(argument.annotation, ast.Name):
                return self._kind_of_result(annotated) if annotated else None
            return None
        function = self.tree.parents.get(self.tree.parents.get(argument, argument))
        if function is not None and getattr(function, "name", "") in STEP_METHODS and argument.arg != "self":
            info = self.tree.class_of(function)
            if info is not None and self.names.is_module_node(info.node) and binding.value is None:
                return "tensor"
        return self.kind(binding.value, depth) if binding.value is not None else None

    def _kind_of_item(self, binding: Binding, depth: int) -> Kind | None:
        """The kind of a loop's items; unpacked batches of a loader are tensors."""
        iterable, target = binding.value, getattr(binding.node, "target", None)
        if isinstance(iterable, ast.Call) and is_name(iterable.func, "range"):
            return "number"
        iterable, whole = counted_in(iterable), iterable
        counted = iterable is not whole
        while (
            isinstance(iterable, ast.Call)
            and iterable.args
            and (self.names.resolve(iterable.func) or "").startswith("tqdm")
        ):
            iterable = iterable.args[0]
        base = self.kind(iterable, depth)
        if base == "loader" and isinstance(target, ast.Tuple):
            return None if counted and not isinstance(target.elts[-1], ast.Tuple) else "tensor"
        return "tensor" if base == "tensor" and not counted else None


def _counter(binding: Binding) -> ast.expr | None:
    """The number in `for number, item in enumerate(...)`."""
    over, target = binding.value, getattr(binding.node, "target", None)
    counts = binding.kind == "iterate" and isinstance(over, ast.Call) and is_name(over.func, "enumerate")
    return target.elts[0] if counts and isinstance(target, ast.Tuple) and target.elts else None


def counted_in(iterable: ast.expr | None) -> ast.expr | None:
    """`loader` of `enumerate(loader)`; anything else as it is."""
    match iterable:
        case ast.Call(ast.Name("enumerate"), [counted, *_]):
            return counted
    return iterable


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
