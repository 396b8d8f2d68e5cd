"""What each safe rule's programs are drawn around, with inputs that its fixtures do not have."""

from __future__ import annotations

from audit.harness import Pattern
from audit.programs import Draw, Piece

SHAPES = ("2, 3, 4", "1, 3, 3", "2, 1, 4", "0, 3, 4", "5, 2, 2")


def tensor(draw: Draw, shape: str, kinds: str = "float double grad strided half int bool complex") -> str:
    """How a tensor is made: another dtype, layout and need of a gradient each time."""
    kind = draw.one(*kinds.split())
    draw.need("import torch")
    if kind in ("int", "bool"):
        made = f"torch.randint(0, 5, [{shape}])"
        return made if kind == "int" else f"{made} > 2"
    if kind == "strided":
        sizes = [s.strip() for s in shape.split(",")]
        return f"torch.randn([{', '.join(reversed(sizes))}]).permute({', '.join(map(str, reversed(range(len(sizes)))))})"
    more = {
        "grad": ", requires_grad=True",
        "double": ", dtype=torch.float64",
        "half": ", dtype=torch.float16",
    }
    more["complex"] = ", dtype=torch.complex64"
    return f"torch.randn([{shape}]{more.get(kind, '')})"


def einsum(draw: Draw) -> Piece:
    a, b = draw.name(), draw.name()
    letters = draw.random.sample("abijkldXY", 4)
    batch, row, column, summed = letters
    one, other = (
        draw.one(f"{row}{summed}", f"{summed}{row}"),
        draw.one(f"{summed}{column}", f"{column}{summed}"),
    )
    sizes = {batch: draw.one("2", "1"), row: "3", column: "2", summed: draw.one("4", "1")}
    with_batch = draw.chance(0.7)
    equations = [f"{batch}{part}" if with_batch else part for part in (one, other, row + column)]
    shapes = [", ".join(sizes[letter] for letter in part) for part in equations[:2]]
    if draw.chance(0.15):  # einsum lets a size of 1 stand for any
        shapes[1] = shapes[1].replace("4", "1")
    kinds = draw.one("float grad strided", "double", "int", "complex", "half")
    equation = draw.one('"{},{}->{}"', "'{}, {} -> {}'").format(*equations)
    call = f"{draw.of('torch.einsum')}({equation}, {a}, {b})"
    return Piece(call, {a: tensor(draw, shapes[0], kinds), b: tensor(draw, shapes[1], kinds)})


def bmm(draw: Draw) -> Piece:
    if draw.chance(0.4):
        return einsum(draw)
    a, b = draw.name(), draw.name()
    kinds = draw.one("float grad strided", "double", "int", "complex")
    shapes = draw.one(("2, 3, 4", "2, 4, 5"), ("1, 3, 4", "2, 4, 5"), ("3, 4", "4, 5"), ("2, 3, 4", "2, 4"))
    call = draw.one(f"{a}.bmm({b})", f"{draw.of('torch.bmm')}({a}, {b})", f"{a}.bmm({b})[0]")
    return Piece(call, {a: tensor(draw, shapes[0], kinds), b: tensor(draw, shapes[1], kinds)})


def transposes(draw: Draw) -> Piece:
    x = draw.name()
    dims = draw.one("0, 1", "-1, 1", "1, 2", "-3, 2", "0, 0")
    back = draw.one(dims, ", ".join(reversed(dims.split(", "))))
    pair = draw.one(
        f"{x}.transpose({dims}).transpose({back})",
        f"{x}.permute(2, 0, 1).permute(1, 2, 0)",
        f"{x}.permute((0, 2, -2)).permute([0, 2, 1])",
        f"({x} * 2).transpose({dims}).transpose({back}) + 1",
        f"{x}.permute(0, 2, 1).permute(0, 2, 1).view({x}.shape[0], -1)",
    )
    if draw.chance(0.2):
        statement = f"{{out}} = {pair}\n{{out}}.{draw.one('add_(1)', 'mul_(2)', 'data.zero_()')}"
        return Piece(pair, {x: tensor(draw, "2, 3, 4")}, statement=statement)
    return Piece(pair, {x: tensor(draw, draw.one(*SHAPES))})


def view(draw: Draw) -> Piece:
    x = draw.name()
    to = draw.one(
        "-1", f"{x}.size(0), -1", "(2, -1)", "2, 2, -1", f"[{x}.shape[0], -1]", "torch.int32", f"{x}.shape"
    )
    turned = draw.one("", ".transpose(1, 2)", ".permute(2, 0, 1)", ".expand(2, -1, -1, -1)", "[..., ::2]")
    call = f"{x}{turned}.contiguous().view({to})"
    draw.need("import torch")
    if draw.chance(0.25):
        write_into = draw.one("{out} += 1", "{out}.add_(1)", "{out}[0] = 1", "torch.add({out}, 1, out={out})")
        return Piece(call, {x: tensor(draw, draw.one(*SHAPES))}, statement=f"{{out}} = {call}\n{write_into}")
    return Piece(call, {x: tensor(draw, draw.one(*SHAPES))})


def data(draw: Draw) -> Piece:
    x = draw.name()
    made = tensor(draw, draw.one(*SHAPES))
    read = draw.one(
        f"{x}.data",
        f"({x} * 2).data",
        f"{x}.data.clone()",
        f"{x}.data + {x}",
        f"{x}.data.shape[0]",
        f"{x}.data.requires_grad",
    )
    write_into = draw.one(
        "{out} += 1", "{out}.add_(1)", "{out}[0] = 1", "{out}.zero_()", "{out}.requires_grad_()"
    )
    if draw.chance(0.3):
        return Piece(read, {x: made}, statement=f"{{out}} = {x}.data\n{write_into}")
    return Piece(read, {x: made})


def falling(draw: Draw) -> Piece:
    x = draw.name()
    name = draw.one("sum", "mean", "amax", "amin", "var", "std", "logsumexp")
    dims = draw.one("(-1, -2)", "[2, 0]", "(2, 1, 0)", "(-1, -3)", "(1, 0)", "(1, 1)", "(-1, 0)")
    more = draw.one("", ", keepdim=True")
    kinds = draw.one(
        "float grad strided", "double", "half", "complex" if name in ("sum", "mean") else "float", "int"
    )
    setup = draw.name() if draw.chance(0.3) else ""
    given = setup or dims
    call = draw.one(
        f"{draw.of(f'torch.{name}')}({x}, {given}{more})",
        f"{x}.{name}({given}{more})",
        f"{x}.{name}(dim={given}{more})",
        f"{draw.of(f'torch.{name}')}({x}, dim={given}{more})",
    )
    return Piece(
        call, {x: tensor(draw, draw.one(*SHAPES), kinds)}, setup=[f"{setup} = {dims}"] if setup else []
    )


def cast(draw: Draw) -> Piece:
    x, y = draw.name(), draw.name()
    draw.need("import torch")
    name = draw.one(
        "FloatTensor", "DoubleTensor", "HalfTensor", "LongTensor", "IntTensor", "ByteTensor", "BoolTensor"
    )
    call = draw.one(
        f"{x}.type({y}.type())",
        f"{x}.type({draw.of(f'torch.{name}')})",
        f"{x}.type('torch.{name}')",
        f"({x} + 1).type(torch.{name}).sum()",
        f"{x}.type(({y} * 2).type())",
    )
    kinds = "float double grad strided half int bool"
    return Piece(
        call, {x: tensor(draw, draw.one(*SHAPES), kinds), y: tensor(draw, draw.one("2, 3", ""), kinds)}
    )


def masked(draw: Draw) -> Piece:
    x, m = draw.name(), draw.name()
    how = draw.one("sum", "mean")
    shape, kinds = draw.one(*SHAPES), "float grad double strided half int"
    if draw.chance(0.05):
        shape, kinds = "300, 300", "half"  # whose sum is more than a half can say
    mask = draw.one(
        f"torch.randn({shape}) > 0", "torch.randn(4) > 9", f"torch.randn({shape}) > 9", "torch.tensor(True)"
    )
    made = tensor(draw, shape, kinds) + " + 3" * (kinds == "half")
    if draw.chance(0.2):
        made = f"{made} / 0"
    call = draw.one(f"{x}.masked_select({m}).{how}()", f"{draw.of('torch.masked_select')}({x}, {m}).{how}()")
    if draw.chance(0.2):
        call = f"{x}.masked_select({m} == 1).{how}()"
    return Piece(call, {x: made, m: mask})


def infinite(draw: Draw) -> Piece:
    x, m = draw.name(), draw.name()
    draw.need("import torch")
    draw.need("import math")
    huge = draw.one("-1e9", "-1e10", "-1e20", "-1e30", "-9e15")
    huge = huge if draw.chance(0.85) else draw.one("float('-inf')", "-math.inf", "-1e5")
    mask = draw.one(
        "torch.randn(2, 3, 4) > 0", "torch.ones(4) > 0", "torch.arange(4) > 1", "torch.randn(3, 4) > 2"
    )
    softmaxes = [
        "torch.softmax({}, -1)",
        "{}.softmax(dim=-1)",
        "torch.nn.functional.softmax({}, dim=-1)",
        "torch.softmax({}, 0)",
        "{}.softmax(1)",
    ]
    if draw.chance(0.2):  # which see the number itself
        softmaxes = [
            "torch.log_softmax({}, -1)",
            "{} * 0.1",
            "torch.softmax({} * 0.5, -1)",
            "[({}).sum(), {}.softmax(-1)]",
        ]
    softmax = draw.one(*softmaxes)
    fills = [f"{m}, {huge}", f"{m}, {huge}", f"mask={m}, value={huge}", f"{m}, value={huge}"]
    made = f"{x}.masked_fill({draw.one(*fills)})"
    if draw.chance(0.2):
        made = draw.one(
            f"{x} + torch.zeros(4, 4)[0].masked_fill({m}, {huge})",
            f"{x} + torch.full((4,), {huge})",
            f"{x} + torch.triu(torch.full((4, 4), {huge}), 1)[0]",
            f"{x} + torch.log(torch.tril(torch.ones(4, 4)))[1]",
            f"({x} * 2).masked_fill({m}, {huge})",
            f"{x}.masked_fill_({m}, {huge})",
        )
    kept = draw.one(draw.name(), "att_mask", "mask_of", x)
    statement = draw.one(
        f"{kept} = {made}\n{{out}} = {softmax.format(*[kept] * 2)}", f"{{out}} = {softmax.format(*[made] * 2)}",
        f"{kept} = {made}\n{{out}} = [{softmax.format(*[kept] * 2)} for {draw.name()} in range(2)]",
        f"{kept} = {made}\ndef {draw.name()}_():\n    return {softmax.format(*[kept] * 2)}\n{{out}} = {kept}.softmax(-1)",
    )  # fmt: skip
    given = tensor(draw, "2, 3, 4", draw.one("float grad strided", "float grad strided", "half", "double"))
    if draw.chance(0.1):  # scores that another mask has lowered
        given += draw.one(
            f".masked_fill(torch.randn(4) > 0, {huge})",
            " - (torch.randn(4) > 0) * 1e9",
            " + (torch.randn(4) > 0) * -1e9",
        )
    return Piece("", {x: given, m: mask}, statement=statement)


def legacy(draw: Draw) -> Piece:
    x = draw.name()
    name = draw.one(
        "FloatTensor", "DoubleTensor", "LongTensor", "IntTensor", "ByteTensor", "Tensor", "BoolTensor"
    )
    values = draw.one(
        "[1, 2, 3]",
        "[[1.5, 2], [3, 4]]",
        "[]",
        "[True, False]",
        "[v for v in range(3)]",
        "numpy.ones(3)",
        "numpy.arange(4)",
        "[2 ** 40]",
    )
    draw.need("import numpy")
    call = draw.one(
        f"{draw.of(f'torch.{name}')}({values})",
        f"{draw.of(f'torch.{name}')}(2, 3).zero_()",
        f"{draw.of('torch.autograd.Variable')}({x})",
        f"{draw.of('torch.autograd.Variable')}({x} * 2, requires_grad=False)",
        f"{draw.of('torch.autograd.Variable')}({x}, volatile=False) + 1",
        f"{x}.data.new({values})",
        f"{x}.new(2, 3).fill_(1)",
        f"{x}.new([1, 2])",
        f"{x}.data.new({x}.size(0), 2).zero_()",
        f"{x}.new().resize_(2, 2).zero_()",
    )
    return Piece(call, {x: tensor(draw, "2, 3", "float double grad int bool half")}, anywhere=True)


def compiled(draw: Draw) -> Piece:
    x, f = draw.name(), draw.name()
    draw.need("import torch")
    inputs = {x: tensor(draw, "2, 3", "float grad double int")}
    if draw.chance(0.3):
        return compiled_layer(draw, x)
    options = draw.one("", "(dynamic=True)", "(backend='eager')")
    decorated = f"@{draw.of('torch.compile')}{options}\ndef {f}({x}):\n    '''Doc.'''\n    return {x} * 2"
    scripted = f"@{draw.of('torch.jit.script')}\ndef {f}({x}):\n    return {x} * 2"
    called = f"def {f}({x}):\n    return {x} * 2\n{f} = {draw.of('torch.compile')}({f}, backend='eager')"
    setup = draw.one(decorated, scripted, called)
    after = draw.one(
        "", "", f"print(hasattr({f}, 'graph'))", f"print({f}.__name__ if hasattr({f}, '__name__') else 0)"
    )
    return Piece(f"{f}({x})", inputs, setup=[setup], after=[after] * bool(after))


def compiled_layer(draw: Draw, x: str) -> Piece:
    """A compiled model, whose parameters have other names."""
    f, inner = draw.name(), draw.name()
    made = f"{draw.of('torch.compile')}(torch.nn.Linear(3, 3), backend='eager')"
    how = draw.one("local", "local", "local", "given", "attribute", "global", "returned")
    inputs = {x: "torch.randn(2, 3)"}
    if how == "attribute":
        return Piece(f"self.own({x})", inputs, {"own": made})
    if how == "global":
        seen = draw.one(
            "", f"print(list({f}.state_dict()))", f"kept = [n for n, _ in {f}.named_parameters()]"
        )
        # Whoever looks at a script's names from outside sees another class.
        return Piece(f"{f}({x})", inputs, setup=[f"{f} = {made}"], after=[*[seen] * bool(seen), f"del {f}"])
    if how == "returned":
        return Piece(f"{inner}()({x})", inputs, setup=[f"def {inner}():\n    {f} = {made}\n    return {f}"])
    uses = draw.one(
        f"{f}.train()",
        f"note('n', len(list({f}.parameters())))",
        f"note('k', list({f}.state_dict()))",
        f"note('m', {f})",
    )
    run = f"{f}({x})"
    setup = []
    if how == "given":
        setup = [f"def {inner}({x}, model):\n    {uses.replace(f, 'model')}\n    return model({x})"]
        run, uses = draw.one(f"{inner}({x}, {f})", f"{inner}({x}, model={f})"), "pass"
    return Piece("", inputs, setup=setup, statement=f"{f} = {made}\n{uses}\n{{out}} = {run}")


PATTERNS: dict[str, Pattern] = {
    "PW208": Pattern(masked, 1e-5, takes_more=True),
    "PW302": Pattern(transposes),
    "PW303": Pattern(view),
    "PW307": Pattern(infinite, takes_more=True),
    "PW308": Pattern(legacy),
    "PW317": Pattern(compiled),
    "PW337": Pattern(falling, 1e-5),
    "PW338": Pattern(cast),
    "PW344": Pattern(bmm, 1e-5, takes_more=True),
    "PW408": Pattern(data),
}
