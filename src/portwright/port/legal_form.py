"""Base of the rules that replace an operation that a target refuses by its form in portwright.layers.legal."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from portwright.legal_forms import FORMS
from portwright.port.finding import Safety
from portwright.port.rewrite import argument, keyword, legal_import, text_of, writes_in_place
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import MethodCall

_VIEWS = ("diagonal", "unfold")  # torch returns a view, the legal form a copy


@dataclass(frozen=True)
class Use:
    """A use of a name that a legal form replaces."""

    file: File
    name: str  # torch's full name, or the name of a method
    call: ast.Call | None
    offset: int = 0  # 1 for a method, whose first argument is the tensor before the dot

    def argument(self, position: int, name: str) -> ast.expr | None:
        """An argument by its position in the function, or only by name if the position is negative."""
        return argument(self.call, position - self.offset, name) if self.call is not None else None


class LegalForm(Rule):
    """Rewrites layers wherever they are used, and functions and methods inside a step.

    `forms` names rows of legal_forms.FORMS, separated by spaces. The keys of `layers` and `functions` are torch's full names,
    the values names in portwright.layers.legal.
    """

    needs = ("known_operations",)
    safety = "safe"
    cure = "Use the form of portwright.layers.legal, which computes the same."
    forms: ClassVar[str] = ""
    also: ClassVar[Mapping[str, str]] = {}  # further names, not in FORMS, with their forms
    layers: ClassVar[Mapping[str, str]] = {}
    functions: ClassVar[Mapping[str, str]] = {}
    methods: ClassVar[Mapping[str, str]] = {}  # methods of tensors: the form takes the tensor first
    library: ClassVar[str] = "portwright.layers.legal"
    reason: ClassVar[str]
    unsafe_beside: ClassVar[tuple[str, ...]] = ()  # texts that make rewrites of their file unsafe
    conditions = (
        "As of all legal forms: values, and gradients where torch's are numbers, are equal up to rounding, state_dict has the same keys, and\n"
        "the form may take what torch refuses. Unsafe where code can tell it from torch's: in a file that asks for exactly this class (`type(m) == ...`), that\n"
        "torch.jit or torch.fx reads, or that writes in place where torch gives a view; and where the receiver of a method may be\n"
        "something else than a tensor. Under no_grad(), torch's view of a tensor that requires a gradient says that it requires one too, and\n"
        "the form's copy does not; neither passes a gradient on."
    )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        named = {**names_of(cls.forms.split()), **cls.also}
        cls.layers = {n: form for n, form in named.items() if form[0].isupper()}
        cls.methods = {
            n.removeprefix("Tensor."): form for n, form in named.items() if n.startswith("Tensor.")
        }
        cls.functions = {
            n: f for n, f in named.items() if n not in cls.layers and not n.startswith("Tensor.")
        }
        if "words" not in cls.__dict__:
            cls.words = tuple({name.rpartition(".")[2] for name in named})

    @staticmethod
    def is_refused(use: Use) -> bool | str:
        """Whether the target refuses this use; a text says what has to be done by hand first."""
        return True

    def find(self, file: File) -> Findings:
        for name, form in self.layers.items():
            for node in self._layer_uses(file, name):
                yield from self._rewrite(file, name, form, node, file.tree.parent_call(node))
        for name, form in self.functions.items():
            for call in file.calls(name):
                if file.flow.in_step(call) and keyword(call, "out") is None:
                    yield from self._rewrite(file, name, form, call.func, call)
        for method, form in self.methods.items():
            for call in file.methods(method):
                if file.flow.in_step(call) and self._is_tensor(file, call):
                    yield from self._rewrite_method(file, method, form, call)

    def _layer_uses(self, file: File, name: str) -> Iterator[ast.expr]:
        for node in file.uses(name) if name.rpartition(".")[2].encode() in file.source.data else ():
            if not isinstance(file.tree.parents.get(node), ast.Attribute) and not _makes_no_layer(file, node):
                yield node

    def _is_tensor(self, file: File, call: MethodCall) -> bool:
        return file.flow.kind(call.func.value) in ("tensor", None) and not isinstance(
            call.func.value, ast.Constant
        )

    def safety_of(self, file: File, name: str) -> Safety:
        """Unsafe if code can tell the form from torch's: it compares the class, writes into a view, or is scripted."""
        asked = name in self.layers and any(_is_compared(file, use) for use in file.uses(name))
        beside = any(text in file.source.text for text in self.unsafe_beside)
        copied = name.rpartition(".")[2] in _VIEWS and writes_in_place(file)
        return "unsafe" if asked or copied or beside or file.once(_is_scripted) else self.safety

    def _rewrite(self, file: File, name: str, form: str, node: ast.expr, call: ast.Call | None) -> Findings:
        needed = self.is_refused(Use(file, name, call))
        short = name.replace("torch.nn.functional.", "F.").replace("torch.nn.", "nn.")
        if needed is True:
            legal, imports = legal_import(file)
            yield self.report(
                file, call or node, f"{short}: {self.reason}", [file.replace(node, f"{legal}.{form}")], imports,
                cure=f"Use legal.{form}, which computes the same.", safety=self.safety_of(file, name),
            )  # fmt: skip
        elif needed:
            yield self.report(file, call or node, f"{short}: {self.reason}", cure=str(needed))

    def _rewrite_method(self, file: File, method: str, form: str, call: MethodCall) -> Findings:
        needed = self.is_refused(Use(file, method, call, 1))
        if needed is True:
            legal, imports = legal_import(file)
            text = method_as_function(file, call, f"{legal}.{form}")
            yield self.report(
                file, call, f".{method}(): {self.reason}", [file.replace(call, text)], imports,
                cure=f"Use legal.{form}, which computes the same.",
                safety=self.safety_of(file, method) if file.flow.is_tensor(call.func.value) else "unsafe",
            )  # fmt: skip
        elif needed:
            yield self.report(file, call, f".{method}(): {self.reason}", cure=str(needed))


def _is_compared(file: File, use: ast.expr) -> bool:
    """`type(m) == nn.Conv1d`, `case nn.Conv1d():`, `{nn.Conv1d: ...}`: whether a class is compared, not instantiated."""
    inner: ast.AST = use
    for outer in file.tree.ancestors(use):
        if isinstance(outer, ast.Call) and inner is outer.func:
            return False
        if isinstance(outer, (ast.Compare, ast.MatchClass)) or (
            isinstance(outer, ast.Dict) and inner in outer.keys
        ):
            return True
        inner = outer
    return False


def _is_scripted(file: File) -> bool:
    """Whether the file uses torch.jit or torch.fx, which cannot read the code of the forms."""
    names = (file.resolve(node) or "" for node in file.tree.all(ast.Attribute, ast.Name))
    return any(name.startswith(("torch.jit.", "torch.fx.")) for name in names)


def method_as_function(file: File, call: MethodCall, function: str) -> str:
    """The call of a method as text, with a function in its place that takes the receiver first."""
    (_, after), (_, end) = file.source.span(call.func), file.source.span(call)
    inner = file.source.data[after : end - 1].decode("utf-8").partition("(")[2].strip()
    return f"{function}({text_of(file, call.func.value)}{', ' if inner else ''}{inner})"


def _makes_no_layer(file: File, node: ast.AST) -> bool:
    """Whether a class is used as a base, as a type, or by isinstance (which legal forms pass), and so makes no layer."""
    inner: ast.AST = node
    for outer in file.tree.ancestors(node):
        if isinstance(outer, ast.ClassDef):
            return inner in outer.bases
        if isinstance(outer, ast.Call) and inner is not outer.func:
            name = outer.func.id if isinstance(outer.func, ast.Name) else ""
            if name in ("isinstance", "issubclass"):
                return True
        if isinstance(outer, (ast.arg, ast.AnnAssign)):
            return inner is getattr(outer, "annotation", None)
        if isinstance(outer, ast.stmt):
            return inner is getattr(outer, "returns", None)
        inner = outer
    return False


def names_of(forms: Iterable[str]) -> dict[str, str]:
    """The names that these rows of FORMS replace, torch's full names or `Tensor.` and a method, with the names of the forms.

    A method that writes in place is left out: its form gives a new tensor.
    """
    found = {}
    wanted = set(forms)
    for form in FORMS:
        for name in form.replaces if form.name in wanted else ():
            holder, _, last = name.rpartition(".")
            full = {"nn": f"torch.nn.{last}", "F": f"torch.nn.functional.{last}"}.get(holder, name)
            if not last.endswith("_"):
                found[full] = last if holder == "nn" or form.name[0].isupper() else form.name
    return found


def legal_form(
    code: str,
    name: str,
    title: str,
    *,
    why: str,
    example: str,
    safety: str,
    reason: str,
    forms: str,
    instead: str = "",
    also: Mapping[str, str] | None = None,
    is_refused: Callable[[Use], bool | str] = LegalForm.is_refused,
    unsafe_beside: tuple[str, ...] = (),
) -> LegalForm:
    """Makes a rule from its row. `instead` is the rewritten example, where more than the module's name changes in it."""
    instead = instead or re.sub(
        r"\b(torch\.utils\.checkpoint|torch|nn|F)\.(?=\w+\()", "legal.", example, count=1
    )
    page = (
        f"{title}\n\n## Why\n{why}\n\n## Example\n```python\n{_in_class(example)}\n```\n\n"
        f"## Instead\n```python\nfrom portwright.layers import legal\n\n{_in_class(instead)}\n```\n\n## Safety\n{safety}"
    )
    made: type[Any] = type(
        LegalForm.__name__,
        (LegalForm,),
        {
            "__doc__": page, "__module__": "portwright.port.rules.legal_forms", "code": code, "name": name, "reason": reason,
            "forms": forms, "also": also or {}, "is_refused": staticmethod(is_refused), "unsafe_beside": unsafe_beside,
        },
    )  # fmt: skip
    rule: LegalForm = made()
    return rule


def _in_class(line: str) -> str:
    """Puts an example into a network: an expression into forward(), a statement that makes a layer into __init__()."""
    if not line.startswith("self."):
        return f"class Net(nn.Module):\n    def forward(self, x):\n        return {line}"
    width = ", width" if "width" in line else ""
    return (
        f"class Net(nn.Module):\n    def __init__(self{width}):\n        super().__init__()\n        {line}"
    )
