"""Finds what a test for an accelerator decides: only devices, or also something that changes the training.

`behind(file, node)` follows the value of such a test to all its uses. Uses that concern only devices are skipped:
devices and moves to them, pinned memory, switches and seeds of CUDA, and printed text. Every other use counts as a
setting, which no rewrite may fix to one value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from portwright.port.callers import is_named_elsewhere
from portwright.port.devices import device_text, is_accelerator, is_device_value
from portwright.port.kinds import counted_in
from portwright.port.rewrite import is_constant, keyword, text_of
from portwright.port.rule import File
from portwright.port.tree import (
    FUNCTIONS,
    Scope,
    imported_tops,
    is_method_call,
    is_name,
    last_name,
    pair,
    words,
)

IDLE = words("""manual_seed manual_seed_all seed seed_all synchronize empty_cache set_device set_device_index init ipc_collect
    reset_peak_memory_stats reset_max_memory_allocated""")
_OF_DEVICES = ("torch.cuda.", "torch.accelerator.", "torch.mps.", "torch.xpu.", "torch.backends.")
_PURE = words("""bool int float str repr len min max range enumerate zip list sorted isinstance getattr hasattr format items values
    keys parameters named_parameters buffers children modules startswith join lower type size dim""")
_SHOWS = words("debug info warning warn error log")
_LOGGER = re.compile(r"(?:^|[._])(?:log|logger|logging)$", re.IGNORECASE)
_EXITS = ("sys.exit", "os._exit", "exit", "quit")
_CUDA_VARIABLE = re.compile(r"CUDA_|CUBLAS_|NCCL_|PYTORCH_CUDA|PYTORCH_MPS")


@dataclass
class Behind:
    """What a test for an accelerator decides beyond devices."""

    settings: list[ast.AST] = field(default_factory=list)
    lost: list[ast.AST] = field(default_factory=list)  # uses where its value cannot be followed further
    is_demand: bool = False  # the script ends if there is no accelerator

    def __bool__(self) -> bool:
        return bool(self.settings or self.lost)

    def describe(self, file: File) -> str:
        """The lines of its settings and lost uses, for a message."""
        places = sorted({(n.lineno, file.short(n)) for n in (*self.settings, *self.lost)})  # type: ignore[attr-defined]
        shown = "; ".join(f"line {line}, {text}" for line, text in places[:4])
        return f"{shown}; and {len(places) - 4} more" if len(places) > 4 else shown

    def may_be_forced(self, file: File) -> bool:
        """Whether all uses are known, and run without CUDA."""
        return not self.lost and not any(
            re.search(r"torch\.cuda\.(?!amp\.|is_|manual_seed)|Parallel|nccl", file.segment(n))
            for n in self.settings
        )


def behind(file: File, question: ast.expr) -> Behind:
    follower = _Follower(file)
    follower.value(question)
    return follower.found


def is_pure(file: File, node: ast.AST) -> bool:
    """Whether an expression can be removed without side effects: it calls only functions that have none."""
    for part in ast.walk(node):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(part, ast.Call):
            name = file.resolve(part.func) or ""
            last = last_name(part.func)
            if name in ("torch.device", "torch.is_tensor", "os.environ.get"):
                continue
            if name.startswith(_OF_DEVICES) and last not in IDLE:
                continue
            if "::" in name or last not in _PURE or (isinstance(part.func, ast.Name) and file.binds(last)):
                return False
    return True


def shows_text(file: File, call: ast.Call) -> bool:
    """Whether a call is print() or a method of a logger."""
    if is_name(call.func, "print"):
        return not file.binds("print")
    return is_method_call(call, *_SHOWS) and (
        (file.resolve(call.func) or "").startswith(("logging.", "warnings."))
        or bool(_LOGGER.search(file.segment(call.func.value)))
    )


def without_moves(file: File, node: ast.expr) -> str:
    """An expression's text without `.cuda()`, `.to(device)` and `.pin_memory()` at its end, and with CPU tensor types."""
    while (
        is_method_call(node)
        and (
            (node.func.attr in ("cuda", "cpu", "pin_memory") and len(node.args) < 2)
            or (node.func.attr == "to" and len(node.args) == 1 and is_device_value(file, node.args[0]))
        )
        and all(k.arg == "non_blocking" for k in node.keywords)
    ):
        node = node.func.value
    return ast.unparse(node).replace("torch.cuda.", "torch.")


class _Follower:
    def __init__(self, file: File) -> None:
        self.file = file
        self.found = Behind()
        self._seen: set[ast.AST] = set()

    def value(self, node: ast.expr) -> None:
        """Follows a value that depends on the test to the node that uses it."""
        if node in self._seen:
            return
        self._seen.add(node)
        parent = self.file.tree.parents[node]
        match parent:
            case ast.Expr():
                pass
            case ast.BoolOp(values=values):
                for other in values[values.index(node) + 1 :]:  # evaluated or not, by the test
                    self._expression(other)
                self.value(parent)
            case ast.UnaryOp() | ast.BinOp() | ast.Compare() | ast.FormattedValue() | ast.JoinedStr():
                self.value(parent)
            case ast.NamedExpr(target=target):
                self._follow_target(target)
                self.value(parent)
            case ast.IfExp(test=test) if node is test:
                self._choice(parent)
            case ast.IfExp():
                self.value(parent)
            case ast.If():
                self._branches(parent)
            case ast.Assert():
                self.found.is_demand = True
            case ast.Assign(targets=targets):
                for each in targets:
                    self._follow_target(each)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                self._follow_target(target)
            case ast.keyword(arg=name) if isinstance(call := self.file.tree.parents[parent], ast.Call):
                self._argument(call, node, name)
            case ast.Call(args=args) if node in args:
                self._argument(parent, node, None)
            case ast.Return():
                self._returned(parent)
            case ast.Dict(keys=keys, values=values) if is_constant(keys[values.index(node)], "pin_memory"):
                pass
            case ast.Tuple() | ast.List():
                self._element(parent, node)
            case _:
                self._note_lost(node)

    def _note_lost(self, node: ast.AST) -> None:
        self.found.lost.append(self.file.tree.statement_of(node) or node)

    def _element(self, outer: ast.Tuple | ast.List, node: ast.expr) -> None:
        statement = self.file.tree.parents[outer]
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            for target, value in pair(statement.targets[0], statement.value):
                if value is node:
                    return self._follow_target(target)
        return self._note_lost(node)

    def _follow_target(self, target: ast.expr) -> None:
        """Follows every use of the assigned name or attribute."""
        if isinstance(target, ast.Name):
            found = self.file.tree.scope_of(target).lookup(target.id)
            self._follow_name(target.id, found[0] if found else self.file.tree.scope)
        elif isinstance(target, ast.Attribute):
            self._attribute(target.attr, self.file.segment(target.value))
        elif not (isinstance(target, ast.Subscript) and _is_device_key(target.slice)):
            self._note_lost(target)

    def _follow_name(self, name: str, scope: Scope) -> None:
        if isinstance(scope.node, ast.ClassDef):
            self._attribute(name, scope.node.name)
        for node in self.file.tree.reads(name, scope):
            self.value(node)
        if scope is self.file.tree.scope:
            self._note_other_files(rf"\b{name}\b", scope.bindings[name][0].node, importers=True)

    def _attribute(self, name: str, owner: str) -> None:
        nodes = [n for n in self.file.attributes(name) if self.file.resolve(n) is None]
        for node in nodes:
            if isinstance(node.ctx, ast.Load) and not self.file.tree.parent_call(node):
                self.value(node)
        for call in self.file.tree.all(ast.Call):
            asked = last_name(call.func)
            if (asked == "getattr" and len(call.args) > 1 and is_constant(call.args[1], name)) or (
                asked in ("vars", "asdict") and call.args and self.file.segment(call.args[0]) == owner
            ):
                self.value(call)
        self._note_other_files(
            rf"(?<!torch)\.{name}\b(?!\s*\()", nodes[0] if nodes else self.file.tree.module.body[0]
        )

    def _note_other_files(self, pattern: str, node: ast.AST, importers: bool = False) -> None:
        names = self.file.names
        if is_named_elsewhere(names.project, names.path, pattern, importers):
            self._note_lost(node)

    def _argument(self, call: ast.Call, node: ast.expr, name: str | None) -> None:
        if name == "pin_memory" or shows_text(self.file, call):
            return None
        last = last_name(call.func)
        if last in ("bool", "int", "str", "format") and not self.file.binds(last):
            return self.value(call)
        if last == "add_argument":
            dest = keyword(call, "dest")
            flags = [dest.value] if dest else [*call.args]
            for flag in flags:
                if isinstance(flag, ast.Constant) and isinstance(flag.value, str):
                    self._attribute(flag.value.lstrip("-").replace("-", "_"), "")
            return None
        function = self._function(call)
        if function is not None:
            arguments = [*function.args.posonlyargs, *function.args.args]
            if arguments and isinstance(self.file.tree.parents.get(function), ast.ClassDef):
                arguments = arguments[1:]
            if name is None and call.args.index(node) < len(arguments):
                name = arguments[call.args.index(node)].arg
            if name in {a.arg for a in (*arguments, *function.args.kwonlyargs)} and name is not None:
                return self._follow_name(name, self.file.tree.scopes[function])
        resolved = self.file.resolve(call.func) or ""
        place = self.file.tree.parents[node] if name else node
        (self.found.settings if resolved.startswith("torch.") else self.found.lost).append(place)
        return None

    def _function(self, call: ast.Call) -> ast.FunctionDef | None:
        """The function of this file that a call runs; for a class, its __init__()."""
        node = self.file.tree.only_definition(call.func)
        if isinstance(node, ast.ClassDef):
            node = self.file.tree.classes[node].methods.get("__init__")
        return node if isinstance(node, ast.FunctionDef) and not node.decorator_list else None

    def _returned(self, statement: ast.Return) -> None:
        """Follows the value to all calls of the function that returns it."""
        function = self.file.tree.function_of(statement)
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            return self._note_lost(statement)
        is_method = isinstance(self.file.tree.parents[function], ast.ClassDef)
        uses: list[ast.expr] = (
            [*self.file.attributes(function.name)]
            if is_method
            else [n for n in self.file.tree.all(ast.Name) if n.id == function.name]
        )
        for use in uses:
            call = self.file.tree.parent_call(use)
            if call is not None:
                self.value(call)
            else:
                self._note_lost(use)
        pattern = rf"\.{function.name}\b" if is_method else rf"\b{function.name}\b"
        return self._note_other_files(pattern, statement, importers=not is_method)

    def _choice(self, choice: ast.IfExp) -> None:
        arms = (choice.body, choice.orelse)
        is_same = len({without_moves(self.file, arm) for arm in arms}) == 1
        if is_same or all(is_device_value(self.file, arm) for arm in arms) or all(map(_pins_only, arms)):
            return
        if all(is_pure(self.file, arm) or self._is_device_call(arm) for arm in arms):
            self._follow_choice(choice, lambda: self.value(choice))
        else:
            self.found.settings.append(choice)

    def _follow_choice(self, node: ast.AST, follow: Callable[[], None]) -> None:
        """Follows a chosen value; if it decides more than devices, notes the choice instead of its uses."""
        outer, self.found = self.found, Behind()
        follow()
        inner, self.found = self.found, outer
        self.found.is_demand |= inner.is_demand
        if inner.lost:
            self.found.lost.append(node)
        elif inner.settings:
            self.found.settings.append(node)

    def _expression(self, node: ast.expr) -> None:
        """Notes an expression that is evaluated or not, by the test, if it has side effects beyond devices."""
        if not is_pure(self.file, node) and not self._is_device_call(node):
            self.found.settings.append(node)

    def _branches(self, statement: ast.If) -> None:
        self._block([statement])
        # After a return, break or continue in a branch, the test also decides the code that follows.
        leaves = {
            type(n) for n in ast.walk(statement) if isinstance(n, (ast.Return, ast.Break, ast.Continue))
        }
        inner: ast.AST = statement
        while leaves and not isinstance(inner, (*FUNCTIONS, ast.Module)):
            if isinstance(inner, ast.stmt):
                block = self.file.tree.block_of(inner)
                rest = block[block.index(inner) + 1 :] if inner in block else []
                if rest:
                    self._block(rest)
            inner = self.file.tree.parents[inner]
            if isinstance(inner, (ast.For, ast.While)):
                leaves -= {ast.Continue, ast.Break}

    def _block(self, statements: Iterable[ast.stmt]) -> dict[str, str]:
        """Notes what statements that run or not decide; returns their assignments, without moves."""
        made = (self._statement(statement) for statement in statements)
        return {name: text for each in made for name, text in each.items()}

    def _statement(self, statement: ast.stmt) -> dict[str, str]:
        file = self.file
        match statement:
            case ast.Pass() | ast.Break() | ast.Continue() | ast.Expr(value=ast.Constant()):
                return {}
            case ast.Raise():
                self.found.is_demand = True
                return {}
            case ast.Import() | ast.ImportFrom() if set(imported_tops(statement)) == {"torch"}:
                return {}
            case ast.Expr(value=ast.Call() as call) if self._is_device_call(call):
                return {}
            case ast.If(test=test) if is_pure(file, test):
                return self._arms(statement)
            case ast.For(iter=over, body=body, orelse=[]) if is_pure(file, over):
                return self._block(body)
            case ast.Assign(targets=[target], value=value):
                made: dict[str, str] = {}
                for leaf, part in pair(target, value):
                    if part is None:
                        self.found.settings.append(statement)
                    elif (text := self._assigned(statement, leaf, part)) is not None:
                        made[file.segment(leaf)] = text
                return made
            case ast.Return(value=value) if value is None or is_device_value(file, value):
                return {}
            case ast.Return(value=ast.Constant() as value):
                self._follow_choice(statement, lambda: self._returned(statement))
                return {}
            case _:
                self.found.settings.append(statement)
                return {}

    def _arms(self, statement: ast.If) -> dict[str, str]:
        """Compares both branches of an if; an assignment that differs between them is a setting."""
        returns = [
            block[-1].value
            for block in (statement.body, statement.orelse)
            if block and isinstance(block[-1], ast.Return) and block[-1].value is not None
        ]
        if len(returns) == 2 and len({without_moves(self.file, r) for r in returns}) == 1:
            one, other = self._block(statement.body[:-1]), self._block(statement.orelse[:-1])
        else:
            one, other = self._block(statement.body), self._block(statement.orelse)
        same = {name: text for name, text in one.items() if other.get(name) == text}
        if any(name not in same and text != name for name, text in [*one.items(), *other.items()]):
            self.found.settings.append(statement)
        return same

    def _assigned(self, statement: ast.stmt, target: ast.expr, value: ast.expr) -> str | None:
        """The text of the assigned value; None for a device or plain value, which is followed."""
        file = self.file
        if is_device_value(file, value) or (file.resolve(target) or "").startswith("torch.backends."):
            return None
        if (isinstance(target, ast.Subscript) and _is_device_key(target.slice)) or _pins_only(value):
            return None
        if isinstance(value, ast.Constant) or (
            isinstance(value, ast.Call) and file.resolve(value.func) and is_pure(file, value)
        ):
            self._follow_choice(statement, lambda: self._follow_target(target))
            return None
        return without_moves(file, value)

    def _is_device_call(self, call: ast.expr) -> bool:
        file = self.file
        if not isinstance(call, ast.Call):
            return False
        name = file.resolve(call.func) or str(getattr(call.func, "id", ""))
        if name in _EXITS:
            self.found.is_demand = True
            return True
        given = [*call.args, *(k.value for k in call.keywords)]
        if not all(is_pure(file, a) for a in given):
            return False
        if shows_text(file, call):
            return True
        if name.startswith(_OF_DEVICES):
            return name.rpartition(".")[2] in IDLE or name.startswith("torch.backends.")
        if name == "torch.set_default_device":
            return True
        if not isinstance(call.func, ast.Attribute) or not is_pure(file, call.func.value):
            return False
        if call.func.attr == "update":
            return all(k.arg == "pin_memory" for k in call.keywords) and all(_pins_only(a) for a in call.args)
        return without_moves(file, call) != ast.unparse(call)


def _is_device_key(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and (
        key.value == "pin_memory" or (isinstance(key.value, str) and bool(_CUDA_VARIABLE.match(key.value)))
    )


def _pins_only(node: ast.expr) -> bool:
    """Whether it is a dictionary with no key but `pin_memory`."""
    return (isinstance(node, ast.Dict) and all(is_constant(k, "pin_memory") for k in node.keys)) or (
        isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "dict"
        and not node.args
        and all(k.arg == "pin_memory" for k in node.keywords)
    )


@dataclass(frozen=True)
class DeviceQuestion:
    """A test such as `device.type == "cuda"`, whose answer changes when the device is rewritten."""

    node: ast.expr
    device: ast.expr
    answer: bool | None  # on an accelerator; None if it depends on which one


def device_questions(file: File) -> list[DeviceQuestion]:
    """The tests in a file that decide more than devices."""
    return [q for q in _all_questions(file) if behind(file, q.node)]


def _all_questions(file: File) -> list[DeviceQuestion]:
    found = []
    for node in file.tree.all(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
            continue
        sides = (node.left, node.comparators[0])
        for text, device in (sides, sides[::-1]):
            options = text.elts if isinstance(text, (ast.Tuple, ast.List, ast.Set)) else [text]
            names = {_device_name(file, option) for option in options}
            if None in names or not names or _device_name(file, device) is not None:
                continue
            if names == {"cpu"} and not _holds_device(file, device):
                continue
            is_equal = isinstance(node.ops[0], (ast.Eq, ast.In))
            answer = is_equal if "cuda" in names else not is_equal if names == {"cpu"} else None
            found.append(DeviceQuestion(node, device, answer))
            break
    for call in file.methods("startswith"):
        if call.args and is_accelerator(call.args[0]):
            found.append(DeviceQuestion(call, call.func.value, True))
    for attribute in file.attributes("is_cuda"):
        if isinstance(attribute.ctx, ast.Load):
            found.append(DeviceQuestion(attribute, attribute.value, True))
    return found


def _holds_device(file: File, node: ast.expr) -> bool:
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "type" else node
    values = (b.value for b in file.tree.bindings(inner) if b.value is not None)
    return "dev" in file.segment(node).lower() or any(is_device_value(file, value) for value in values)


def _device_name(file: File, node: ast.expr) -> str | None:
    """The type of device that a literal names: "cuda", "cpu"."""
    if isinstance(node, ast.Call) and file.resolve(node.func) == "torch.device" and node.args:
        node = node.args[0]
    is_device = is_accelerator(node) or is_constant(node, "cpu")
    return str(node.value).partition(":")[0] if is_device else None  # type: ignore[attr-defined]


def split(file: File, question: DeviceQuestion) -> str | None:
    """The condition by which the tested device was chosen, as text to replace the test; None if there is none."""
    node = question.device
    of_type = isinstance(node, ast.Attribute) and node.attr == "type"
    if isinstance(node, ast.Attribute) and of_type:
        node = node.value
    made = only_value(file, node)
    bound = device_text(file, made)
    is_made = bound is not made
    # A device is never equal to a text, and "cuda:0" is not "cuda".
    if not isinstance(bound, ast.IfExp) or question.answer is None or is_made != of_type:
        return None
    if _device_name(file, bound.body) != "cuda" or not is_constant(bound.orelse, "cpu"):
        return None
    if not isinstance(bound.body, ast.Constant) or not is_pure(file, bound.test):
        return None
    texts = {file.segment(bound.body), file.segment(bound.orelse)}
    asked = {file.segment(n) for n in ast.walk(question.node) if isinstance(n, ast.Constant)}
    if not of_type and not texts & asked:
        return None
    for name in (n for n in ast.walk(bound.test) if isinstance(n, ast.Name)):
        there, here = file.tree.scope_of(name).lookup(name.id), file.tree.scope_of(node).lookup(name.id)
        if there is None or here is None or there[0] is not here[0] or len(there[1]) != 1:
            return None
    for attribute in (n for n in ast.walk(bound.test) if isinstance(n, ast.Attribute)):
        if sum(isinstance(a.ctx, ast.Store) for a in file.attributes(attribute.attr)) > 1:
            return None
    text = text_of(file, bound.test)
    return text if question.answer else f"(not {text})"


def only_value(file: File, node: ast.expr) -> ast.expr | None:
    """The value of a name that is assigned only once."""
    found = file.tree.bindings(node)
    return found[0].value if len(found) == 1 and found[0].kind == "assign" else None


def is_loaded(file: File, node: ast.expr) -> bool:
    """Whether a name is only assigned items of a loader, which are on the host and have no gradient."""
    found = file.tree.bindings(node)
    return bool(found) and all(
        b.kind == "iterate" and file.flow.kind(counted_in(b.value)) == "loader" for b in found
    )
