"""One file's branch, from its anatomy to its edits."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field, replace

from portwright.port.branches.anatomy import Anatomy, argument_of, bound_in, find_anatomy
from portwright.port.branches.dialect import Dialect, Names, has_import, module_base
from portwright.port.branches.graph_slice import GraphSlice, Setting, loaded
from portwright.port.branches.home import Home, find_home
from portwright.port.branches.optimizers import check_optimizer, kind_of, own_classes
from portwright.port.branches.seen import SeenFile
from portwright.port.branches.split_step import Through, find_through
from portwright.port.branches.step_edits import (
    cut_all,
    guard,
    host_updates,
    indent_of_compound,
    refuse_accumulation,
)
from portwright.port.branches.switch import Switch, find_switch
from portwright.port.branches.text import Refusal, Script, insert_after, insert_before, rendered, unit_of
from portwright.port.branches.uses import Uses, add_parameter
from portwright.port.finding import Edit
from portwright.port.patch import _insert_imports
from portwright.port.rewrite import set_keyword
from portwright.port.rule import File


@dataclass
class Branch:
    """Edits of one file, what they did, and what a person should still look at."""

    switch: Switch
    edits: list[Edit] = field(default_factory=list)
    made: list[tuple[ast.AST, str]] = field(default_factory=list)
    notes: list[tuple[ast.AST, str, str]] = field(default_factory=list)


def add_branch(file: SeenFile, dialect: Dialect) -> Branch | None:
    """None where the file does not train; a Refusal where it does in a way that is not understood."""
    anatomy = find_anatomy(file)
    if anatomy is None:
        return None
    absent = check_optimizer(anatomy, dialect)
    through = find_through(anatomy)
    if through is not None:
        slices = [through.graph]
    else:
        models = frozenset({anatomy.model})
        setting = Setting(file, anatomy.body, anatomy.frame, models, lambda name: is_batch(anatomy, name))
        slices = cut_all(setting, anatomy)
    graph = slices[0]
    home = find_home(anatomy, graph)
    names = _names(file, anatomy, dialect, graph)
    switch = find_switch(file, dialect.target, home.frame)
    branch = Branch(switch)
    updates = host_updates(anatomy)
    uses = _find_uses(anatomy, slices, through, home, dialect, names, updates)
    if not uses.evaluated and through is None and names.inference:  # nothing is evaluated: no executor for it
        names = replace(names, inference="")
        uses = _find_uses(anatomy, slices, through, home, dialect, names, updates)
    if through is not None:
        branch.edits += through.edits(names, updates)
    else:
        branch.edits += guard(anatomy, slices, updates, names)
    branch.edits += [*switch.edits, *refuse_accumulation(anatomy, names.training)]
    optimizers = own_classes(anatomy, dialect, switch, home)
    branch.edits += optimizers
    branch.edits += _open(file, dialect, names, anatomy, home, switch)
    branch.edits += _pass_on(anatomy, names)
    branch.edits += uses.edits
    branch.edits += _definitions(file, dialect, names, anatomy, graph, through, home, switch)
    _describe(branch, anatomy, dialect, graph, home, uses)
    _describe_optimizers(branch, anatomy, dialect, absent, bool(optimizers))
    return branch


def _find_uses(
    anatomy: Anatomy, slices: list[GraphSlice], through: Through | None, home: Home, dialect: Dialect, names: Names,
    updates: list[ast.stmt],
) -> Uses:  # fmt: skip
    skipped = {id(s) for s in updates}
    for each in slices:
        skipped |= {id(s) for s in (*each.statements, *each.twins, *each.late)}
    uses = Uses(anatomy, slices[0], home, dialect, names, skipped)
    if through is not None:
        uses.skipped |= through.owned
        uses.dealt_with = f"self.{through.method.name}"
    uses.find()
    return uses


def is_batch(anatomy: Anatomy, name: str) -> bool:
    """Whether a name of the step's function changes from step to step."""
    if name in (anatomy.model, anatomy.optimizer, "self"):
        return False
    if not isinstance(anatomy.region, ast.FunctionDef):
        return name in bound_in([anatomy.region])  # type: ignore[list-item]
    function = anatomy.region
    bindings = anatomy.file.tree.scopes[function].bindings.get(name)
    if bindings is None:
        return False
    if any(b.kind != "parameter" for b in bindings) or anatomy.origin != "parameter":
        return True
    for call in anatomy.calls:
        given, loops = argument_of(function, call, name), anatomy.file.tree.loops_of(call)
        if given is not None and loops and loaded(given) & bound_in([loops[0]]):  # type: ignore[list-item]
            return True
    return False


def _names(file: File, anatomy: Anatomy, dialect: Dialect, graph: GraphSlice) -> Names:
    free = file.free_name
    prefix = "self." if anatomy.origin == "attribute" else ""
    training = prefix + free(f"{dialect.target}_training")
    evaluates = dialect.evaluates and graph.can_evaluate
    inference = prefix + free(f"{dialect.target}_inference") if evaluates else ""
    base = module_base(file) or "torch.nn.Module"
    helper = free(f"{dialect.target.capitalize()}Training")
    wrapper = free("ModelWithLoss", f"{dialect.target.capitalize()}ModelWithLoss")
    return Names(
        training, inference, wrapper, helper, base, free(f"{dialect.target}_options"), dialect.averages
    )


def _open(
    file: File,
    dialect: Dialect,
    names: Names,
    anatomy: Anatomy,
    home: Home,
    switch: Switch,
) -> list[Edit]:
    """Makes the executor, once model, loss and optimizer are known."""
    script = Script(file, indent_of_compound(file, home.statement))
    if anatomy.origin != "attribute":
        both = f"{names.training} = {names.inference}" if names.inference else names.training
        script.line(f"{both} = None")
    script.line(f"if {switch.condition}:")
    script.line(f"if {dialect.name} is None:", 1).line(dialect.absent(), 2)
    wrapped = f"{names.wrapper}({', '.join([home.model, *home.captured])})"
    depth = 1
    if home.training_only:
        script.line(f"if {home.training_only}:", 1)
        depth = 2
    script.line(f"{home.model}.train()", depth)
    dialect.open(script, names, wrapped, home.optimizer, depth)
    if home.training_only:
        script.line("else:", 1)
        dialect.open_inference(script, names, home.model, 2)
    insert = insert_after if home.is_after else insert_before
    return [insert(file, home.statement, script.text)]


def _pass_on(anatomy: Anatomy, names: Names) -> list[Edit]:
    """Gives the step's function its executor, where it gets its optimizer so."""
    if anatomy.origin != "parameter" or anatomy.function is None:
        return []
    edits = [add_parameter(anatomy.file, anatomy.function, f"{names.training}=None")]
    for call in anatomy.calls:
        given = set_keyword(anatomy.file, call, names.training, names.training)
        if not given:
            raise Refusal(call, "this call's arguments cannot be added to", "Write them one by one.")
        edits += given
    return edits


def _definitions(
    file: File, dialect: Dialect, names: Names, anatomy: Anatomy, graph: GraphSlice, through: Through | None,
    home: Home, switch: Switch,
) -> list[Edit]:  # fmt: skip
    """The guarded import, the wrapper's class, and an attribute that says that nothing is on the device yet."""
    replaced = through.replaced if through is not None else graph.replaced
    text = write_wrapper(file, dialect, names, graph, replaced)
    helper = Script(file)
    dialect.helper(helper, names)
    used = {n.id for n in ast.walk(ast.parse(helper.text)) if isinstance(n, ast.Name)} & set(dir(builtins))
    for name in sorted(used & set(file.tree.scope.bindings)):
        place = file.tree.scope.bindings[name][0].node
        raise Refusal(
            place, f"'{name}' is no longer Python's own here, and the branch needs that", "Rename it."
        )
    made = anatomy.creations if dialect.optim else []  # which may name the package, too
    first = min(
        _top(file, node)
        for node in (anatomy.frame, home.frame, home.statement, anatomy.region, *made)
        if hasattr(node, "lineno")
    )
    place = next(s for s in file.tree.module.body if s.lineno == first)
    unit, newline = helper.unit, file.source.newline
    statements = [newline.join(line.replace("    ", unit) for line in dialect.import_lines)]
    edits = []
    if isinstance(place, (ast.FunctionDef, ast.ClassDef, ast.If)):
        edits.append(insert_before(file, place, text + helper.text))
    else:  # a script's own statements: its definitions stand behind its imports
        statements.append(newline * 2 + (text + helper.text).rstrip())
    if switch.needs_os and not has_import(file, "os"):
        statements.insert(0, "import os")
    if module_base(file) is None:
        statements.insert(0, "import torch")
    edits.append(_add_imports(file, place, statements))
    if anatomy.info is not None and anatomy.origin == "attribute":
        body = anatomy.info.node.body
        attributes = Script(file, indent_of_compound(file, body[0]))
        for name in filter(None, (names.training, names.inference)):
            attributes.line(f"{name.removeprefix('self.')} = None")
        attributes.line("")
        is_docstring = (
            isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1
        )
        edits.append(insert_before(file, body[1] if is_docstring else body[0], attributes.text))
    return edits


def _add_imports(file: File, place: ast.stmt, statements: list[str]) -> Edit:
    """Behind the last import before a place, wherever the file has put it."""
    before = file.tree.module.body[: file.tree.module.body.index(place)]
    imports = [s for s in before if isinstance(s, (ast.Import, ast.ImportFrom)) or _is_guarded_import(s)]
    if not imports:
        return _insert_imports(file.source, file.tree.module, statements, file.source.span(place)[0])
    text = "".join(statement + file.source.newline for statement in statements)
    return insert_after(file, imports[-1], text)


def _is_guarded_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Try) and all(
        isinstance(s, (ast.Import, ast.ImportFrom)) for s in statement.body
    )


def _top(file: File, node: ast.AST) -> int:
    """The line of the top-level statement that holds a node."""
    top = node
    for outer in file.tree.ancestors(node):
        if isinstance(outer, ast.stmt):
            top = outer
    return top.lineno  # type: ignore[attr-defined, no-any-return]


def _describe(
    branch: Branch, anatomy: Anatomy, dialect: Dialect, graph: GraphSlice, home: Home, uses: Uses
) -> None:
    where = dialect.target.upper()
    branch.made.append(
        (home.statement, f"the model is opened for the {where} here, with its loss and its optimizer")
    )
    branch.made.append((graph.anchor, f"the {where} computes model, loss and update in one call"))
    branch.made += [
        (call, f"backward() and what follows it are left to the {where}") for call in anatomy.backward
    ]
    branch.made += [(node, f"evaluation runs on the {where} too") for node in uses.evaluated]
    for node in ast.walk(anatomy.frame):
        is_read = isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load)
        if is_read and anatomy.file.resolve(node) is None:
            branch.notes.append(
                (
                    node,
                    f"gradients are read on the host here, and on the {where} they stay there",
                    f"Leave it out when the {where} is used.",
                )
            )
            break
    if anatomy.accumulation is not None:
        branch.notes.append(
            (
                anatomy.accumulation,
                f"a step of several batches is refused on the {where} when it runs",
                "Give the vendor's options the number of batches that make an update, and the step all of them together.",
            )
        )


def _describe_optimizers(
    branch: Branch, anatomy: Anatomy, dialect: Dialect, absent: list[ast.Call], has_own: bool
) -> None:
    file, where = anatomy.file, dialect.target.upper()
    branch.notes += [
        (
            call,
            f"the {where} has no {kind_of(file, call)}{dialect.optimizer_limits}: asking for it there is an error",
            f"On the {where}, use one of {', '.join(dialect.optimizers)}.",
        )
        for call in absent
    ]
    if has_own:
        branch.made.append((anatomy.creations[0], f"on the {where} the optimizer is {dialect.optim}'s"))
        return
    for call in file.methods("state_dict"):
        assert isinstance(call.func, ast.Attribute)
        if file.segment(call.func.value) == anatomy.optimizer:
            branch.notes.append(
                (
                    call,
                    f"a checkpoint made on the {where} has the weights, but not the optimizer's moments, which stay there",
                    "Expect them to start anew after a restart.",
                )
            )
            break


def write_wrapper(
    file: File, dialect: Dialect, names: Names, graph: GraphSlice, replaced: dict[ast.AST, str]
) -> str:
    """A class whose forward() is the step's own statements, and returns what the step uses, and the loss."""
    script = Script(file)
    script.line(f"class {names.wrapper}({names.module}):")
    script.line(f'"""The model and its loss in one graph, as the {dialect.device} runs them."""', 1).line("")
    captured = [part.name for part in graph.captured]
    script.line(f"def __init__(self, {', '.join(['model', *captured])}):", 1)
    script.line("super().__init__()", 2)
    for name in ("model", *captured):
        script.line(f"self.{name} = {name}", 2)
    script.line("")
    parts = [part.name for part in graph.inputs]
    evaluates = dialect.evaluates and bool(names.inference) and graph.can_evaluate
    if evaluates:
        assert graph.num_model_inputs is not None
        parts = [n if i < graph.num_model_inputs else f"{n}=None" for i, n in enumerate(parts)]
    script.line(f"def forward({', '.join(['self', *parts])}):", 1)
    inner = unit_of(file) * 2
    for position, statement in enumerate(graph.statements):
        script.raw(rendered(file, statement, inner, replaced))
        if position == 0 and evaluates:
            first = graph.statements[0]
            assert isinstance(first, ast.Assign)
            missing = graph.inputs[graph.num_model_inputs or 0].name
            script.line(f"if {missing} is None:", 2)
            script.line(f"return {file.segment(first.targets[0])}", 3)
    loss = dialect.loss(graph.loss)
    returned = [loss, *graph.outputs] if dialect.is_loss_first() else [*graph.outputs, loss]
    script.line(f"return {', '.join(returned)}", 2).line("").line("")
    return script.text
