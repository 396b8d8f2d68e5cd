"""Finds an nn.Embedding whose result goes through a module of sinusoids, and what one EmbeddingLayer takes for both."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from portwright.port.rewrite import argument, has_star, keyword
from portwright.port.rule import File
from portwright.port.sinusoid_reader import Sinusoids, read_sinusoids
from portwright.port.tree import FUNCTIONS, ClassInfo, is_name
from portwright.port.turned_instances import is_aside, uses_of
from portwright.port.turned_models import find_layers


class UnclearError(Exception):
    """The embedding or its positions are used in a way that is not understood; the text says which."""


@dataclass(frozen=True)
class Use:
    """One place where the embedding is looked up and goes through the positions."""

    lookup: ast.Call  # self.encoder(src)
    scaled: ast.expr  # self.encoder(src) * math.sqrt(self.d_model), or the lookup itself
    positions: ast.Call  # self.pos_encoder(...)


@dataclass
class Pair:
    """An embedding and its positions in one class."""

    info: ClassInfo
    embedding: str
    positions: str
    made: ast.Call  # nn.Embedding(...)
    positions_made: ast.Call
    module: ClassInfo
    uses: list[Use] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)  # keywords of the layer that stands for both
    scale: str = ""
    is_last: bool = True  # no other embedding goes through the same positions


def find_pairs(file: File, info: ClassInfo) -> Iterator[Pair | tuple[ast.Call, str]]:
    """Embeddings with positions after them; what is not understood comes as its place and the reason."""
    for name, values in info.attributes.items():
        made = values[0] if len(values) == 1 else None
        module = _module_of(file, made)
        if module is None or not isinstance(made, ast.Call) or not _is_about_positions(file, module):
            continue
        calls = _calls_of(file, info, name)
        embeddings = sorted({e for c in calls for e in _embeddings_in(file, info, c)})
        if embeddings and _is_turned_first(file, info, module):
            continue
        reasons = set()
        for embedding in embeddings:
            try:
                yield _understand(file, info, embedding, name, made, module)
            except UnclearError as error:
                if str(error) not in reasons:
                    yield made, str(error)
                reasons.add(str(error))


def _is_turned_first(file: File, info: ClassInfo, module: ClassInfo) -> bool:
    """Whether the model takes the sequence first and so do its positions: PW314 turns both, and then they are asked."""
    if not find_layers(file, info).made:
        return False
    return isinstance(read_sinusoids(file, module, sequence_first=True), Sinusoids)


def _module_of(file: File, made: ast.expr | None) -> ClassInfo | None:
    reference = file.resolve(made.func) if isinstance(made, ast.Call) else None
    return next(
        (i for i in file.flow.module_classes if reference == f"{file.source.path}::{i.node.name}"), None
    )


def _is_about_positions(file: File, module: ClassInfo) -> bool:
    text = file.segment(module.node)
    return "sin" in text and "cos" in text and "forward" in module.methods


def _calls_of(file: File, info: ClassInfo, name: str) -> Iterator[ast.Call]:
    for node in file.attributes(name):
        parent = file.tree.parents.get(node)
        own = file.tree.class_of(node) is info and is_name(node.value, "self")
        if own and isinstance(parent, ast.Call) and parent.func is node:
            yield parent


def _lookups(file: File, info: ClassInfo) -> dict[str, ast.Call]:
    found = {}
    for name, values in info.attributes.items():
        made = values[0] if len(values) == 1 else None
        if isinstance(made, ast.Call) and file.resolve(made.func) == "torch.nn.Embedding":
            found[name] = made
    return found


def _embeddings_in(file: File, info: ClassInfo, call: ast.Call) -> Iterator[str]:
    """The embeddings that an argument of the positions comes from, directly or by the statement before."""
    given = _source_of(file, call)
    for node in ast.walk(given) if given is not None else ():
        if (
            isinstance(node, ast.Attribute)
            and is_name(node.value, "self")
            and node.attr in _lookups(file, info)
        ):
            yield node.attr


def _source_of(file: File, call: ast.Call) -> ast.expr | None:
    """What is given to the positions: the expression itself, or the value set by the statement just before."""
    if len(call.args) != 1 or call.keywords:
        return None
    given = call.args[0]
    if not isinstance(given, ast.Name):
        return given
    before = _statement_before(file, call)
    if isinstance(before, ast.Assign) and len(before.targets) == 1 and is_name(before.targets[0], given.id):
        return before.value
    return None


def _statement_before(file: File, node: ast.AST) -> ast.stmt | None:
    statement = file.tree.statement_of(node)
    if statement is None:
        return None
    block = file.tree.block_of(statement)
    place = block.index(statement)
    return block[place - 1] if place else None


def _understand(
    file: File, info: ClassInfo, embedding: str, positions: str, made: ast.Call, module: ClassInfo
) -> Pair:
    table = _lookups(file, info)[embedding]
    pair = Pair(info, embedding, positions, table, made, module)
    read = read_sinusoids(file, module)
    if isinstance(read, str):
        if isinstance(read_sinusoids(file, module, sequence_first=True), Sinusoids):
            read = "it takes the sequence first, and may be used elsewhere"
        raise UnclearError(f"{module.node.name}: {read}")
    if "set_default_dtype" in file.source.text:
        raise UnclearError("the script sets another default precision, in which the table is worked out")
    _read_uses(file, pair)
    _read_options(file, pair, read)
    return pair


def _read_uses(file: File, pair: Pair) -> None:
    calls = list(_calls_of(file, pair.info, pair.positions))
    lookups = set()
    scales = set()
    for call in calls:
        source = _source_of(file, call)
        own = set(_embeddings_in(file, pair.info, call))
        if source is None or len(own) != 1:
            raise UnclearError(f"what goes into self.{pair.positions} is not an embedding alone")
        if own != {pair.embedding}:
            pair.is_last = False
            continue
        lookup, scale = _take_apart(source)
        if lookup is None:
            raise UnclearError(f"self.{pair.embedding} is changed before self.{pair.positions}")
        if isinstance(call.args[0], ast.Name):
            _check_adjacent(file, call, call.args[0].id)
        lookups.add(lookup)
        scales.add("" if scale is None else _at_init(file, pair, scale))
        pair.uses.append(Use(lookup, source, call))
    if len(scales) != 1:
        raise UnclearError(f"self.{pair.embedding} is scaled in different ways")
    pair.scale = scales.pop()
    for name in (pair.embedding, pair.positions):
        for node in file.attributes(name):
            _check_use(file, pair, node, lookups)


def _check_use(file: File, pair: Pair, node: ast.Attribute, lookups: set[ast.Call]) -> None:
    parent = file.tree.parents.get(node)
    called = isinstance(parent, ast.Call) and parent.func is node
    own = is_name(node.value, "self") and file.tree.class_of(node) is pair.info
    if not own:
        if called and file.resolve(node) is None and not is_name(node.value, "self"):
            raise UnclearError(f"{file.segment(node)} is called from outside of its class")
        return
    if isinstance(node.ctx, ast.Store):
        return
    if node.attr == pair.embedding:
        if parent in lookups or (isinstance(parent, ast.Attribute) and parent.attr == "weight"):
            return
        raise UnclearError(f"self.{node.attr} is used without self.{pair.positions}")
    if not called:
        raise UnclearError(f"self.{node.attr} is used in another way than by calling it")


def _take_apart(source: ast.expr) -> tuple[ast.Call | None, ast.expr | None]:
    """`self.encoder(src) * scale` as both parts."""
    if isinstance(source, ast.Call):
        return (source, None) if len(source.args) == 1 and not source.keywords else (None, None)
    if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Mult):
        for lookup, scale in ((source.left, source.right), (source.right, source.left)):
            if not isinstance(lookup, ast.Call) or not isinstance(lookup.func, ast.Attribute):
                continue
            if is_name(lookup.func.value, "self") and len(lookup.args) == 1 and not lookup.keywords:
                return lookup, scale
    return None, None


def _check_adjacent(file: File, call: ast.Call, name: str) -> None:
    """The name between lookup and positions is read nowhere else before it is set again."""
    statement = file.tree.statement_of(call)
    if not isinstance(statement, (ast.Assign, ast.Return)):
        raise UnclearError("what goes into the positions is also used elsewhere")
    if (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and is_name(statement.targets[0], name)
    ):
        return
    function = file.tree.function_of(call)
    reads = [
        n
        for n in ast.walk(function or file.tree.module)
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n.lineno > call.lineno
    ]
    if reads:
        raise UnclearError(f"{name} is used again after the positions were added")


def _at_init(file: File, pair: Pair, node: ast.expr) -> str:
    """An expression of forward() in terms of __init__'s own arguments."""
    return ast.unparse(_Substitute(file, pair.info).visit(ast.parse(file.segment(node), mode="eval").body))


class _Substitute(ast.NodeTransformer):
    """Puts in for self.x what __init__ was given for it."""

    def __init__(self, file: File, info: ClassInfo) -> None:
        self.file, self.info = file, info
        made = info.methods.get("__init__")
        self.names = {a.arg for a in made.args.args} if isinstance(made, FUNCTIONS) else set()

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if is_name(node.value, "self"):
            values = self.info.attributes.get(node.attr, [])
            if len(values) != 1 or not _is_setting(values[0], self.names):
                raise UnclearError(f"self.{node.attr} is not a setting that __init__ is given")
            return values[0]
        if isinstance(node.value, ast.Name) and node.value.id in ("math", "np", "numpy"):
            return node
        raise UnclearError("the scale of the embedding is not a plain number")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in ("math", "np", "numpy", "float", "int") and not node.id.isupper():
            raise UnclearError(f"the scale of the embedding is {node.id}, which __init__ does not know")
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        root = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if not isinstance(root, ast.Name) or root.id not in ("math", "np", "numpy", "float", "int"):
            raise UnclearError("the scale of the embedding is not a plain number")
        self.generic_visit(node)
        return node


def _is_setting(value: ast.expr, names: set[str]) -> bool:
    """A number worked out of the arguments of __init__ alone."""
    for part in ast.walk(value):
        if isinstance(part, ast.Name) and part.id not in names | {"math", "np", "numpy", "int", "float"}:
            return False
        if isinstance(part, ast.Call) and not (
            isinstance(part.func, ast.Attribute) and isinstance(part.func.value, ast.Name)
            and part.func.value.id in ("math", "np", "numpy")
        ):  # fmt: skip
            return False
        if isinstance(part, ast.Attribute) and not isinstance(part.value, ast.Name):
            return False
    return True


def _read_options(file: File, pair: Pair, read: Sinusoids) -> None:
    made = pair.made
    known = {"num_embeddings", "embedding_dim", "padding_idx"}
    if has_star(made) or len(made.args) > 3 or any(k.arg not in known for k in made.keywords):
        raise UnclearError("nn.Embedding is given more than its sizes and padding_idx")
    size, width = argument(made, 0, "num_embeddings"), argument(made, 1, "embedding_dim")
    if size is None or width is None:
        raise UnclearError("the sizes of nn.Embedding are not given")
    options = {"vocab_size": file.segment(size), "embedding_size": file.segment(width)}
    padding = argument(made, 2, "padding_idx")
    if padding is not None:
        options["pad_token_id"] = file.segment(padding)
    values = _arguments_of(file, pair)
    if values.get(read.width) is None or ast.dump(_plain(values[read.width])) != ast.dump(_plain(width)):
        raise UnclearError("embedding and positions are given different widths")
    options |= {"embeddings_initializer": "None", "position_embedding_type": '"fixed"'}
    options["max_position_embeddings"] = (
        str(read.length)
        if isinstance(read.length, int)
        else _text_at_embedding(file, pair, values[read.length])
    )
    scales = [s for s in (pair.scale, f"math.sqrt({options['embedding_size']})" if read.scaled else "") if s]
    if len(scales) > 1 or (read.scaled and not file.binds("math")):
        raise UnclearError("the embedding is scaled twice, or math is not imported")
    if scales:
        options["embedding_scale"] = scales[0]
    if isinstance(read.dropout, str):
        options["dropout"] = _text_at_embedding(file, pair, values[read.dropout])
    elif read.dropout:
        options["dropout"] = repr(read.dropout)
    pair.options = options


def _plain(node: ast.expr) -> ast.expr:
    """The same expression without its place in the text."""
    return ast.parse(ast.unparse(node), mode="eval").body


def _arguments_of(file: File, pair: Pair) -> dict[str, ast.expr]:
    """What the positions' module is given, with its defaults."""
    made = pair.module.methods["__init__"]
    call = pair.positions_made
    if has_star(call):
        raise UnclearError("the arguments of the positions are hidden in a list or dict")
    names = [a.arg for a in made.args.args[1:]]
    values: dict[str, ast.expr] = {
        a.arg: d for a, d in zip(made.args.args[::-1], made.args.defaults[::-1], strict=False)
    }
    for place, name in enumerate(names):
        given = argument(call, place, name)
        if given is not None:
            values[name] = given
    return values


def _text_at_embedding(file: File, pair: Pair, node: ast.expr) -> str:
    """The text of an argument, if it means the same where the embedding is made."""
    found = pair.info.methods.get("__init__")
    names = (
        {a.arg for a in found.args.args + found.args.kwonlyargs} if isinstance(found, FUNCTIONS) else set()
    )
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            if part.id not in names and part.id not in file.tree.scope.bindings:
                raise UnclearError(f"{part.id} may not be known yet where the embedding is made")
            if part.id == "self":
                raise UnclearError(f"{ast.unparse(node)} may not be known yet where the embedding is made")
    return file.segment(node)


def is_left_alone(file: File, pair: Pair) -> bool:
    """Whether nothing but this class uses the positions' module, so that it can go."""
    named = [n for n in uses_of(file, pair.module) if not is_aside(file, n)]
    makers = {v for values in pair.info.attributes.values() for v in values}
    made_here = [n for n in named if file.tree.parents.get(n) in makers]
    return (
        pair.is_last
        and len(named) == len(made_here) == 1
        and pair.module.node in file.tree.module.body
        and keyword(pair.positions_made, "persistent") is None
        and not file.names.project.is_used_elsewhere(file.source.path, pair.module.node.name)
    )
