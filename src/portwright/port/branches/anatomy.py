"""How a file trains: its step, its loss, and where model and optimizer come from."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Literal

from portwright.port.branches.graph_slice import simple_statements, stored
from portwright.port.branches.text import Refusal
from portwright.port.rule import File
from portwright.port.tree import FUNCTIONS, ClassInfo, MethodCall, is_method_call

Origin = Literal["local", "parameter", "global", "attribute"]
_MODEL_NAMES = ("model", "net", "network", "module", "nn", "classifier", "_model", "_net", "_network")


@dataclass
class Anatomy:
    """One training step, by the texts that its own function uses."""

    file: File
    function: ast.FunctionDef | None  # None: the script's own level
    region: ast.AST  # what is done for one batch: a loop, or the function
    backward: list[MethodCall]
    loss: str
    optimizer: str
    model: str
    origin: Origin
    info: ClassInfo | None = None
    calls: list[ast.Call] = field(default_factory=list)  # of the function, where its optimizer is a parameter
    creations: list[ast.Call] = field(default_factory=list)  # of the optimizer: one, or one in each branch
    accumulation: ast.expr | None = None  # how many batches make one update, where that is a loop of its own

    @property
    def creation(self) -> ast.Call | None:
        return self.creations[-1] if self.creations else None

    @property
    def body(self) -> list[ast.stmt]:
        return self.region.body  # type: ignore[attr-defined, no-any-return]

    @property
    def frame(self) -> ast.AST:
        return self.function or self.file.tree.module


def find_anatomy(file: File) -> Anatomy | None:
    """The training step of a file; None where it has none, and a Refusal where it has several or one that is unclear."""
    regions = file.flow.step_regions
    if not regions:
        for call in file.flow.backward_calls:
            raise Refusal(
                call, "backward() is called outside of a loop and a function", "Put the step into a loop."
            )
        return None
    if len(regions) > 1:
        second = sorted((c for calls in regions.values() for c in calls), key=lambda c: c.lineno)[1]
        raise Refusal(
            second,
            "there is more than one training step in this file",
            "Give each its own file, then port again.",
        )
    (region, backward), *_ = regions.items()
    function = file.tree.function_of(backward[0])
    if function is not None and not isinstance(function, ast.FunctionDef):
        raise Refusal(
            backward[0], "the step stands in a lambda or a coroutine", "Write it as a plain function."
        )
    loss = _loss_name(file, backward)
    optimizer = _optimizer(file, function, backward[0])
    info = file.tree.class_of(function) if function is not None else None
    origin = _origin(file, function, optimizer, backward[0])
    found = Anatomy(file, function, region, backward, loss, optimizer, "", origin, info)
    found.calls = _calls_of(file, function) if origin == "parameter" else []
    found.creations = _creations(found)
    found.model = _model(found)
    _look_for_accumulation(found)
    _look_for_clipping(found)
    return found


def _loss_name(file: File, backward: list[MethodCall]) -> str:
    names = set()
    for call in backward:
        receiver = call.func.value
        if is_method_call(receiver, "scale") and len(receiver.args) == 1:
            receiver = receiver.args[0]
        if not isinstance(receiver, ast.Name) or call.args:
            raise Refusal(
                call,
                f"backward() is called on '{file.segment(receiver)[:60]}', not on a loss with a name",
                "Assign the loss to a name, and call backward() on it without arguments.",
            )
        names.add(receiver.id)
    if len(names) > 1:
        raise Refusal(
            backward[1],
            f"a step has more than one loss: {', '.join(sorted(names))}",
            "Sum the losses, and call backward() once.",
        )
    return names.pop()


def _optimizer(file: File, function: ast.AST | None, at: ast.Call) -> str:
    texts = set()
    for call in file.methods("step"):
        if file.tree.function_of(call) is not function:
            continue
        candidates: list[ast.expr] = [call.func.value, *call.args[:1]]
        for node in candidates:
            text = file.segment(node)
            kind = file.flow.kind(node)
            if isinstance(node, (ast.Name, ast.Attribute)) and (
                kind == "optimizer" or (kind is None and "opt" in text.lower())
            ):
                texts.add(text)
    if len(texts) == 1:
        return texts.pop()
    if not texts:
        raise Refusal(
            at,
            "no optimizer's step() belongs to this backward()",
            "Update the weights with a torch optimizer.",
        )
    raise Refusal(
        at,
        f"one step has several optimizers: {', '.join(sorted(texts))}",
        "A vendor's graph has one optimizer: train one network at a time.",
    )


def _origin(file: File, function: ast.FunctionDef | None, optimizer: str, at: ast.Call) -> Origin:
    if optimizer.startswith("self.") and optimizer.count(".") == 1:
        return "attribute"
    if not optimizer.isidentifier():
        raise Refusal(
            at, f"the optimizer is held in '{optimizer}'", "Give it a name, or make it an attribute of self."
        )
    if function is None:
        return "local"
    own = file.tree.scopes[function].bindings.get(optimizer)
    if own is None:
        return "global"
    return "parameter" if all(b.kind == "parameter" for b in own) else "local"


def _calls_of(file: File, function: ast.FunctionDef | None) -> list[ast.Call]:
    assert function is not None
    found = []
    for call in file.tree.all(ast.Call):
        if isinstance(call.func, ast.Name) and call.func.id == function.name:
            looked_up = file.tree.scope_of(call.func).lookup(function.name)
            if looked_up and [b.node for b in looked_up[1]] == [function]:
                found.append(call)
    if not found:
        raise Refusal(
            function,
            f"nothing in this file calls {function.name}(), which gets its optimizer as an argument",
            "Port the file that makes model and optimizer, with the step in it.",
        )
    if len({file.tree.function_of(call) for call in found}) > 1:
        raise Refusal(
            found[1], f"{function.name}() is called from several functions", "Call it from one place."
        )
    return sorted(found, key=lambda c: c.lineno)


def argument_of(function: ast.FunctionDef, call: ast.Call, name: str) -> ast.expr | None:
    """What a call gives a function's parameter; its default where it gives nothing."""
    given = next((k.value for k in call.keywords if k.arg == name), None)
    if given is not None:
        return given
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if name in names:
        position = names.index(name)
        if any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
            return None
        if position < len(call.args):
            return call.args[position]
        from_end = len(names) - position
        return function.args.defaults[-from_end] if from_end <= len(function.args.defaults) else None
    return None


def _creations(found: Anatomy) -> list[ast.Call]:
    """The calls that make the optimizer, where the file has them."""
    file, wanted = found.file, {found.optimizer}
    for call in found.calls:
        assert found.function is not None
        given = argument_of(found.function, call, found.optimizer)
        if given is not None:
            wanted.add(file.segment(given))
    made = []
    for call in file.calls("torch.optim."):
        name = (file.resolve(call.func) or "").removeprefix("torch.optim.")
        statement = file.tree.statement_of(call)
        if "." in name or not name[:1].isupper() or not isinstance(statement, ast.Assign):
            continue
        if any(file.segment(target) in wanted for target in statement.targets):
            made.append(call)
    return sorted(made, key=lambda call: call.lineno)


def model_of(file: File, creation: ast.Call) -> str:
    """The module whose parameters an optimizer was given."""
    owners = set()
    for node in ast.walk(creation):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("parameters", "named_parameters")
        ):
            owner = node.func.value
            while isinstance(owner, ast.Attribute) and not (
                isinstance(owner.value, ast.Name) and owner.value.id == "self"
            ):
                owner = owner.value
            owners.add(file.segment(owner))
    if len(owners) > 1:
        raise Refusal(
            creation,
            f"the optimizer has the parameters of several networks: {', '.join(sorted(owners))}",
            "Put them into one nn.Module that calls them in turn.",
        )
    return owners.pop() if owners else ""


def _model(found: Anatomy) -> str:
    """What the step's function calls the model."""
    file = found.file
    called = {
        file.segment(node.func): node
        for statement in simple_statements(found.body)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
    }
    owner = model_of(file, found.creation) if found.creation is not None else ""
    if owner and found.origin == "parameter":
        assert found.function is not None
        names = [a.arg for a in (*found.function.args.args, *found.function.args.kwonlyargs)]
        for name in names:
            given = [argument_of(found.function, call, name) for call in found.calls]
            if any(g is not None and file.segment(g) == owner for g in given):
                return name
    elif owner:
        return owner
    likely = [text for text in called if text.rpartition(".")[2].lower() in _MODEL_NAMES]
    likely = likely or [
        text
        for text, call in called.items()
        if file.flow.kind(call.func) == "module" and "loss" not in text.lower()
    ]
    if len(likely) == 1:
        return likely[0]
    if owner:
        return owner
    raise Refusal(
        found.backward[0],
        "it cannot be told which call is the model's" + (f": {', '.join(sorted(likely))}" if likely else ""),
        "Make model and optimizer in this file: torch.optim.X(model.parameters(), ...).",
    )


def bound_in(body: list[ast.stmt]) -> set[str]:
    return {name for statement in body for name in stored(statement)}


def _look_for_accumulation(found: Anatomy) -> None:
    """A step of several backward passes: the executor updates at each call."""
    file = found.file
    for call in file.methods("step"):
        texts = [file.segment(call.func.value), *(file.segment(a) for a in call.args[:1])]
        if found.optimizer not in texts or file.tree.function_of(call) is not found.function:
            continue
        if file.flow.is_gated(call, found.function):
            raise Refusal(
                call,
                "gradients of several batches are accumulated here",
                "The vendor's step updates at each call: set its own gradient accumulation, and give it the batches together.",
            )
        if not isinstance(found.region, FUNCTIONS) and not file.tree.is_within(call, found.region):
            over = found.region.iter if isinstance(found.region, ast.For) else None
            if (
                isinstance(over, ast.Call)
                and isinstance(over.func, ast.Name)
                and over.func.id == "range"
                and len(over.args) == 1
            ):
                found.accumulation = over.args[0]
            else:
                raise Refusal(
                    call,
                    "the update is made outside of the loop over batches",
                    "Call the optimizer's step() after each backward().",
                )


def _look_for_clipping(found: Anatomy) -> None:
    file = found.file
    names = (
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_norm",
        "torch.nn.utils.clip_grad_value_",
    )
    for call in file.calls(*names):
        if file.tree.function_of(call) is found.function:
            raise Refusal(
                call,
                "gradients are clipped on the host, where a vendor's step never brings them",
                "Ask the vendor's optimizer for it (poptorch.optim takes max_grad_norm), or train without.",
            )
