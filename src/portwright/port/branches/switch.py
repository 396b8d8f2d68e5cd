"""How a person asks for the target: a member of the project's enumeration, a device, a flag, or a variable."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

from portwright.port.branches.seen import PLAIN_MEMBERS, DeviceChoice, SeenFile
from portwright.port.branches.text import Refusal, Script, indent_of, insert_after, insert_before
from portwright.port.finding import Edit
from portwright.port.rule import File

VARIABLE = "ACCELERATOR"


@dataclass
class Switch:
    """The condition under which a branch is taken, and what makes it possible to ask for it."""

    condition: str
    how: str  # for people
    edits: list[Edit] = field(default_factory=list)
    enum: tuple[Path, str] | None = None  # a class in another file that needs a member
    needs_os: bool = False
    choice: DeviceChoice | None = None
    held: tuple[str, ast.stmt | None] | None = None  # the parsed arguments, and what binds them

    def is_known(self, file: File, home: ast.AST, at: ast.stmt) -> bool:
        """Whether the condition can be asked at a statement, as it is at the executor's home."""
        frame = file.tree.function_of(at) or file.tree.module
        if self.choice is not None:
            return _sees(file, self.choice, frame)
        if self.held is not None:
            name, bound = self.held
            here = file.tree.scopes.get(frame, file.tree.scope).lookup(name)
            there = file.tree.scopes.get(home, file.tree.scope).lookup(name)
            if here is None or there is None or here[0] is not there[0]:
                return False
            inside = None if bound is None else file.tree.function_of(bound) or file.tree.module
            return bound is None or inside is not frame or bound.lineno < at.lineno
        return True  # the environment


def find_switch(file: SeenFile, target: str, frame: ast.AST) -> Switch:
    """The way that fits the file: the first of enumeration, --device, a parser, the environment."""
    return (
        _by_enum(file, target, frame)
        or _by_device_option(file, target, frame)
        or _by_flag(file, target, frame)
        or _by_environment(file, target, frame)
    )


def _by_enum(file: SeenFile, target: str, frame: ast.AST) -> Switch | None:
    for choice in file.choices:
        if _sees(file, choice, frame):
            own = _spelled(target, choice.members)
            needed = (choice.path, choice.name) if own not in choice.members else None
            return Switch(
                f"{choice.asked} == {choice.enum}.{own}", f"{choice.name}.{own}", enum=needed, choice=choice
            )
    return None


def _sees(file: File, choice: DeviceChoice, frame: ast.AST) -> bool:
    """Whether what is compared means the same where the executor is made."""
    if choice.owner:
        info = file.tree.class_of(frame)
        return info is not None and info.node.name == choice.owner and frame in info.methods.values()
    found = file.tree.scopes.get(frame, file.tree.scope).lookup(choice.root)
    return found is not None and getattr(found[0].node, "lineno", None) == choice.line


def _spelled(target: str, members: frozenset[str]) -> str:
    """IPU or ipu, as the other members are written."""
    plain = next((m for m in members if m.upper() in PLAIN_MEMBERS), "CPU")
    return target.upper() if plain.isupper() else target.lower()


def add_member(file: File, name: str, target: str) -> Edit:
    """A member for the target, behind the last one, with a value of the same kind."""
    node = next((n for n in file.tree.all(ast.ClassDef) if n.name == name), None)
    members = [] if node is None else [s for s in node.body if isinstance(s, ast.Assign)]
    if not members:
        raise Refusal(
            node or file.tree.module,
            f"the members of {name} cannot be seen",
            f"Add one for {target.upper()}.",
        )
    last = members[-1]
    label = _spelled(target, frozenset(t.id for m in members for t in m.targets if isinstance(t, ast.Name)))
    values = [m.value for m in members]
    numbers = [v.value for v in values if isinstance(v, ast.Constant) and type(v.value) is int]
    text = file.segment(last.value)
    if len(numbers) == len(values):
        value = str(max(numbers) + 1)
    elif isinstance(last.value, ast.Constant) and isinstance(last.value.value, str):
        value = text[0] + (target.upper() if last.value.value.isupper() else target) + text[-1]
    elif isinstance(last.value, ast.Call) and (file.resolve(last.value.func) or "").endswith("auto"):
        value = text
    else:
        raise Refusal(
            last, f"the values of {name} follow no rule that can be seen", f"Add a member {label} to it."
        )
    indent = indent_of(file, last)
    widths = {_width(file, member) for member in members}
    width = widths.pop() - 1 if len(widths) == 1 else 0  # where the others stand in a column
    return insert_after(file, last, f"{indent}{label.ljust(width)} = {value}{file.source.newline}")


def _width(file: File, member: ast.Assign) -> int:
    head = file.source.data[file.source.span(member)[0] : file.source.span(member.value)[0]].decode()
    return head.index("=")


def _options(file: File) -> list[ast.Call]:
    return [
        call
        for call in file.methods("add_argument")
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    ]


def _names_of(option: ast.Call) -> list[str]:
    return [a.value for a in option.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]


def _arguments(file: File, frame: ast.AST) -> tuple[str, ast.stmt | None] | None:
    """The name of the parsed arguments where the executor is made, and the statement that binds it there."""
    scope = file.tree.scopes.get(frame, file.tree.scope)
    for name in ("args", "opt", "opts", "options", "config", "cfg", "hparams", "flags", "FLAGS"):
        found = scope.lookup(name)
        if found is None:
            continue
        owner, bindings = found
        if all(b.kind == "parameter" for b in bindings) and owner.node is frame:
            return name, None
        made = [b.node for b in bindings if b.kind == "assign" and isinstance(b.value, ast.Call)]
        if len(made) == len(bindings) == 1 and isinstance(made[0], ast.stmt):
            return name, made[0]
    return None


def _by_device_option(file: File, target: str, frame: ast.AST) -> Switch | None:
    option = next((o for o in _options(file) if "--device" in _names_of(o)), None)
    held = _arguments(file, frame)
    if option is None or held is None or not isinstance(frame, (ast.FunctionDef, ast.Module)):
        return None
    name, bound = held
    if _own(option, "dest") not in (None, "device") or not _is_text(option):
        return None
    edits = []
    choices = next((k.value for k in option.keywords if k.arg == "choices"), None)
    if isinstance(choices, (ast.List, ast.Tuple)) and choices.elts:
        mark = file.segment(choices.elts[-1])[0]
        mark = mark if mark in "'\"" else '"'
        end = file.source.span(choices.elts[-1])[1]
        edits.append(Edit(end, end, f", {mark}{target}{mark}"))
    elif choices is not None:
        return None
    first = frame.body[0] if bound is None else None
    script = Script(file, indent_of(file, bound or frame.body[0]))
    script.line(f'{name}.{target} = {name}.device == "{target}"')
    script.line(f"if {name}.{target}:")
    script.line(f'{name}.device = "cpu"  # of the host: the vendor\'s step places the model itself', 1)
    if first is not None:
        edits.append(insert_before(file, first, script.text))
    elif bound is not None:
        edits.append(insert_after(file, bound, script.text))
    return Switch(f"{name}.{target}", f"--device {target}", edits, held=held)


def _own(option: ast.Call, keyword: str) -> object:
    found = next((k.value for k in option.keywords if k.arg == keyword), None)
    return found.value if isinstance(found, ast.Constant) else None if found is None else found


def _is_text(option: ast.Call) -> bool:
    kind = next((k.value for k in option.keywords if k.arg == "type"), None)
    return kind is None or (isinstance(kind, ast.Name) and kind.id == "str")


def _by_flag(file: File, target: str, frame: ast.AST) -> Switch | None:
    options, held = _options(file), _arguments(file, frame)
    if not options or held is None:
        return None
    if any(f"--{target}" in _names_of(o) for o in options):
        return None
    last = max(options, key=lambda o: o.lineno)
    statement = file.tree.statement_of(last)
    if not isinstance(statement, ast.Expr) or not isinstance(last.func, ast.Attribute):
        return None
    receiver = file.segment(last.func.value)
    if not receiver.isidentifier():
        return None
    script = Script(file, indent_of(file, statement))
    script.line(
        f'{receiver}.add_argument("--{target}", action="store_true", help="train on the {target.upper()}")'
    )
    condition = f"{held[0]}.{target}"
    edits = [insert_after(file, statement, script.text), *_host_device(file, frame, condition, held[1])]
    return Switch(condition, f"--{target}", edits, held=held)


def _by_environment(file: File, target: str, frame: ast.AST) -> Switch:
    condition = f'os.environ.get("{VARIABLE}") == "{target}"'
    return Switch(
        condition,
        f"{VARIABLE}={target} in the environment",
        _host_device(file, frame, condition, None),
        needs_os=True,
    )


def _host_device(file: File, frame: ast.AST, condition: str, after: ast.stmt | None) -> list[Edit]:
    """Keeps the host's tensors on the CPU, behind each place that chooses a device."""
    edits = []
    for statement in file.tree.all(ast.Assign):
        if len(statement.targets) != 1 or not _chooses_device(file, statement):
            continue
        target = statement.targets[0]
        inside = file.tree.function_of(statement)
        if inside is not None and inside is not frame and not file.segment(target).startswith("self."):
            continue
        if not condition.startswith("os.") and not _is_bound_before(
            file, condition.partition(".")[0], statement, after
        ):
            continue
        is_text = isinstance(statement.value, (ast.IfExp, ast.Constant))
        script = Script(file, indent_of(file, statement))
        script.line(f"if {condition}:")
        host = '"cpu"' if is_text else _torch_device(file, statement)
        script.line(
            f"{file.segment(target)} = {host}  # of the host: the vendor's step places the model itself", 1
        )
        edits.append(insert_after(file, statement, script.text))
    return edits


def _is_bound_before(file: File, name: str, statement: ast.stmt, binder: ast.stmt | None) -> bool:
    """Whether a name has its value where a statement runs; in its own block, only what stands before it has given one."""
    inside = file.tree.function_of(statement)
    found = file.tree.scopes.get(inside or file.tree.module, file.tree.scope).lookup(name)
    if found is None:
        return False
    scope, bindings = found
    lines = [getattr(b.node, "lineno", 0) for b in bindings if b.kind != "parameter"]
    if binder is not None and file.tree.function_of(binder) is inside:
        lines.append(binder.lineno)
    is_own = scope.node is (inside or file.tree.module)
    return not is_own or not lines or max(lines) < statement.lineno


def _torch_device(file: File, statement: ast.Assign) -> str:
    assert isinstance(statement.value, ast.Call)
    text = file.segment(statement.value.func)
    return f'{text}("cpu")' if file.resolve(statement.value.func) == "torch.device" else 'torch.device("cpu")'


def _chooses_device(file: File, statement: ast.Assign) -> bool:
    name = file.segment(statement.targets[0]).rpartition(".")[2].lower()
    if not re.fullmatch(r"_?(device|dev)", name):
        return False
    text = file.segment(statement.value)
    chooses = any(word in text for word in ("cuda", "mps", "xpu", "accelerator"))
    if isinstance(statement.value, ast.Call):
        called = file.resolve(statement.value.func) or ""
        return chooses and (called == "torch.device" or called.startswith("torch.accelerator."))
    return chooses and isinstance(statement.value, (ast.IfExp, ast.Constant))
