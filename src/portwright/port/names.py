"""Resolves names in a file, through aliases, re-exports and the project's own modules."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

from portwright.port.project import LIBRARIES, Definition, Outline, Project, make_outline
from portwright.port.torch_names import PUBLIC
from portwright.port.tree import Binding, Scope, Tree, dotted_chain, words

_BUILTINS = frozenset(dir(builtins))
_MAX_HOPS = 12
_CANONICAL = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"torch\.nn\.modules\.\w+\.(?=[A-Z])", "torch.nn."),
        (r"torch\.optim\.(?!lr_scheduler|swa_utils)\w+\.(?=[A-Z])", "torch.optim."),
        (r"torch\.utils\.data\.(?:dataloader|dataset|sampler|distributed)\.(?=[A-Z])", "torch.utils.data."),
        (r"torch\.autograd\.variable\.", "torch.autograd."),
        (r"torch\.autograd\.function\.", "torch.autograd."),
        (r"torch\.nn\.parallel\.(?:distributed|data_parallel)\.(?=[A-Z])", "torch.nn.parallel."),
        (r"torch\.nn\.DataParallel$", "torch.nn.parallel.DataParallel"),
        (r"torch\.nn\.parameter\.", "torch.nn."),
        (r"torch\.nn\.utils\.clip_grad\.", "torch.nn.utils."),
        (r"torch\.(?:cuda\.)?amp\.(?:autocast_mode\.)?autocast$", "torch.autocast"),
        (r"torch\.(?:cuda\.)?amp\.(?:grad_scaler\.)?GradScaler$", "torch.amp.GradScaler"),
        (r"torch\.functional\.", "torch."),
        (r"torch\._C\._nn\.", "torch.nn.functional."),
    )
]
_MODULE_BASES = words(
    "pytorch_lightning.LightningModule lightning.LightningModule lightning.pytorch.LightningModule pl.LightningModule "
    "transformers.PreTrainedModel portwright.layers.legal.Module"
)
_NOT_MODULES = words("torch.nn.Parameter torch.nn.Buffer torch.nn.UninitializedParameter")


def canonical(dotted: str) -> str:
    """The public spelling of a torch name."""
    for pattern, replacement in _CANONICAL if dotted.startswith("torch.") else ():
        dotted = pattern.sub(replacement, dotted, count=1)
    return dotted


def split_reference(reference: str) -> tuple[Path, str]:
    """Splits a reference `file::name`."""
    path, _, name = reference.rpartition("::")
    return Path(path), name


class Names:
    """Resolves the names in one file.

    A library's name becomes its canonical dotted name (`torch.nn.Conv1d`), a name that the project defines
    `file::name`, and an unknown one None.
    """

    def __init__(self, path: Path, tree: Tree, project: Project) -> None:
        self.path = path
        self.tree = tree
        self.project = project
        self._known: dict[ast.AST, str | None] = {}
        self._by_scope: dict[tuple[int, str], str | None] = {}
        self._own: Outline | None = None

    def resolve(self, node: ast.AST) -> str | None:
        kind = node.__class__
        if kind is not ast.Name and kind is not ast.Attribute:
            return None
        if node not in self._known:
            self._known[node] = self._resolve(node)
        return self._known[node]

    def is_undefined(self, name: ast.Name) -> bool:
        """Whether nothing in the file defines a name, and no star import may."""
        scope = self.tree.scope_of(name)
        if (
            name.id in _BUILTINS
            or scope.lookup(name.id) is not None
            or name.id in ("__file__", "__name__", "__doc__")
        ):
            return False
        is_bound = any(name.id in other.bindings for other in self.tree.scopes.values())
        return not is_bound and not any(each.stars for each in scope.around())

    def is_module_class(self, reference: str | None) -> bool:
        """Whether a class is an nn.Module, also through bases in the project's other files."""
        return reference is not None and self._is_module(reference, 0)

    def definition(self, reference: str) -> Definition | None:
        """The definition of one of the project's own names."""
        if "::" not in reference:
            return None
        path, name = split_reference(reference)
        outline = self._outline(path)
        return outline.names.get(name) if outline else None

    def base_names(self, reference: str) -> list[str]:
        """The resolved bases of one of the project's classes."""
        path, name = split_reference(reference)
        definition = (self.project.define(path, name) if path != self.path else None) or self.definition(
            reference
        )
        if definition is None or definition.kind != "class":
            return []
        found = (self._in_module(path, base.split("."), 0) for base in definition.bases)
        return [base for base in found if base]

    def _outline(self, path: Path) -> Outline | None:
        if path != self.path:
            return self.project.outline(path)
        if self._own is None:
            self._own = make_outline(path, self.tree.module)
        return self._own

    def bases_of(self, node: ast.ClassDef) -> list[str]:
        found = (self.resolve(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases)
        return [base for base in found if base]

    def is_module_node(self, node: ast.ClassDef) -> bool:
        """Whether a class of this file, also a nested one, is an nn.Module."""
        return any(self._is_module(base, 0) for base in self.bases_of(node))

    def _is_module(self, reference: str, hops: int) -> bool:
        if hops > _MAX_HOPS:
            return False
        if "::" in reference:
            path, name = split_reference(reference)
            node = self._own_class(name) if path == self.path else None
            bases = self.base_names(reference) if path != self.path else self.bases_of(node) if node else []
            return any(self._is_module(base, hops + 1) for base in bases if base != reference)
        head, _, last = reference.rpartition(".")
        is_layer = head in ("torch.nn", "portwright.layers") and last[:1].isupper()
        return reference in _MODULE_BASES or (is_layer and reference not in _NOT_MODULES)

    def _own_class(self, name: str) -> ast.ClassDef | None:
        bound = (binding.node for binding in self.tree.scope.bindings.get(name, ()))
        classes = (node for node in bound if isinstance(node, ast.ClassDef))
        return next(classes, None) or next((node for node in self.tree.classes if node.name == name), None)

    def _resolve(self, node: ast.AST) -> str | None:
        chain = dotted_chain(node)
        if chain is None:
            return None
        root, parts = chain
        scope = self.tree.scope_of(root)
        key = (id(scope), root.id)
        if key not in self._by_scope:
            self._by_scope[key] = None  # ends recursion in an alias of itself
            self._by_scope[key] = self._resolve_root(root.id, scope)
        base = self._by_scope[key]
        return None if base is None else self._follow(base, parts, 0)

    def _resolve_root(self, name: str, scope: Scope) -> str | None:
        found = scope.lookup(name)
        if found is None:
            return None if name in _BUILTINS else self._resolve_star(name, scope)
        bindings = found[1]
        resolved: set[str] = set()
        for binding in bindings:
            reference = self._resolve_binding(name, binding)
            if reference is not None:
                resolved.add(reference)
            elif not _is_placeholder(binding):
                return None
        if len(resolved) > 1 and all(b.kind == "import" for b in bindings):
            # Imports of one name from an old and a new module: the first import counts.
            return self._resolve_binding(name, bindings[0])
        return resolved.pop() if len(resolved) == 1 else None

    def _resolve_binding(self, name: str, binding: Binding) -> str | None:
        if binding.kind == "import":
            return self._imported(self.path, binding.dotted, binding.level, 0)
        if binding.kind in ("class", "function"):
            return f"{self.path}::{name}"
        if binding.kind == "assign" and binding.value is not None:
            return self.resolve(binding.value)
        return None

    def _resolve_star(self, name: str, scope: Scope) -> str | None:
        stars = (star for each in scope.around() for star in reversed(each.stars))
        references = (self._starred(self.path, star.dotted, star.level, name, 0) for star in stars)
        return next(filter(None, references), None)

    def _starred(self, importer: Path, dotted: str, level: int, name: str, hops: int) -> str | None:
        if level == 0 and dotted in PUBLIC:
            is_known = name in PUBLIC[dotted] or name.removesuffix("_") in PUBLIC[dotted]
            return canonical(f"{dotted}.{name}") if is_known else None
        path = self.project.find_module(importer, dotted, level) if hops < _MAX_HOPS else None
        return self._in_module(path, [name], hops + 1) if path is not None else None

    def _imported(self, importer: Path, dotted: str, level: int, hops: int) -> str | None:
        """What `import dotted`, or `from a import b` with dotted a.b, stands for."""
        top, _, below = dotted.partition(".")
        if (
            level == 0
            and (top in LIBRARIES or not below)
            and self.project.find_module(importer, top, 0) is None
        ):
            return canonical(dotted)
        # The folder of a package needs no __init__.py.
        path = self.project.find_module(importer, dotted, level)
        if path is not None:
            return f"{path}::"  # the module itself
        head, _, name = dotted.rpartition(".")
        path = self.project.find_module(importer, head, level)
        if path is None:
            return canonical(dotted) if level == 0 else None
        return self._in_module(path, [name], hops + 1)

    def _in_module(self, path: Path, parts: list[str], hops: int) -> str | None:
        """What `parts` mean at the top level of one of the project's files."""
        if hops > _MAX_HOPS:
            return None
        definition = self.project.define(path, parts[0]) if path != self.path else None
        if definition is None:
            outline = self._outline(path)
            if outline is None:
                return None
            definition = outline.names.get(parts[0])
            if definition is None:
                return self._in_stars(path, outline, parts, hops)
        if definition.kind in ("class", "function", "other"):
            return f"{path}::{parts[0]}" if len(parts) == 1 else None
        if definition.kind == "alias":
            return self._in_module(path, [*definition.dotted.split("."), *parts[1:]], hops + 1)
        reference = self._imported(path, definition.dotted, definition.level, hops + 1)
        return self._follow(reference, parts[1:], hops + 1) if reference is not None else None

    def _in_stars(self, path: Path, outline: Outline, parts: list[str], hops: int) -> str | None:
        """Resolves a name that comes from a star import of a module, or that is a submodule of a package."""
        stars = reversed(outline.stars)
        references = (self._starred(path, dotted, level, parts[0], hops + 1) for dotted, level in stars)
        reference = next(filter(None, references), None)
        if reference is None and path.name == "__init__.py":
            inner = self.project.find_module(path, parts[0], 1)
            reference = f"{inner}::" if inner is not None else None
        return self._follow(reference, parts[1:], hops + 1) if reference is not None else None

    def _follow(self, base: str, parts: list[str], hops: int) -> str | None:
        if not parts:
            return base
        if "::" not in base:
            return canonical(".".join([base, *parts]))
        path, name = split_reference(base)
        if name:  # an attribute of a class or function
            return None
        return self._in_module(path, parts, hops + 1)


def _is_placeholder(binding: Binding) -> bool:
    """Whether it is an assignment of None, as in `except ImportError: torch = None`."""
    value = binding.value
    return binding.kind == "assign" and isinstance(value, ast.Constant) and value.value is None


_ENUMS = ("enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag")
_INHERITED = frozenset({"name", "value", "mro"})


def members_of_enum(names: Names, reference: str) -> frozenset[str] | None:
    """The members of an enumeration of the project; None for anything else, or if a base is unknown."""
    definition = names.definition(reference) if _is_enum(names, reference, 0) else None
    if definition is None or definition.kind != "class":
        return None
    bases, found = names.base_names(reference), definition.members | _INHERITED
    if len(bases) < len([base for base in definition.bases if base not in ("str", "int")]):
        return None
    for base in bases:
        is_of_project = "::" in base and base != reference
        inherited = members_of_enum(names, base) if is_of_project else _INHERITED if base in _ENUMS else None
        if inherited is None:
            return None
        found |= inherited
    return found


def _is_enum(names: Names, reference: str, hops: int) -> bool:
    """Whether a class derives from Enum; reading the bases needs no parsing of files."""
    if hops > 5:
        return False
    bases = names.base_names(reference)
    return any(base in _ENUMS or ("::" in base and _is_enum(names, base, hops + 1)) for base in bases)
