"""The texts of a layout of a Keras script."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Sequence

from portwright.port.keras_layout.plan import Feed, Plan
from portwright.port.keras_layout.script import RefusalError, Statement, is_seed
from portwright.port.layout.settings import show


class Part:
    """One file: what it defines, and the names that this needs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.functions: list[str] = []
        self.positions: set[int] = set()  # of the flow: statements in its functions
        self.names: set[str] = set()  # that the script has to give meaning to


class Writer:
    """Makes the files' texts of a plan."""

    def __init__(self, plan: Plan, script_name: str) -> None:
        self.plan = plan
        self.script = plan.script
        self.script_name = script_name
        self.model = Part("model.py")
        self.data = Part("data.py")
        self._mark_constants()

    def files(self) -> dict[str, str | bytes]:
        self._write_data()
        self._write_model()
        shared = self._shared_definitions()
        return {
            "model.py": self._text(self.model, f"The model of {self.script_name}.", _MODEL_HEAD, shared),
            "data.py": self._text(self.data, f"The data of {self.script_name}.", _DATA_HEAD, shared),
            "utils.py": self._utils(shared),
            "run.py": _RUN.format(
                inputs="eval_input_fn, train_input_fn" if self.has_evaluation() else "train_input_fn",
                evaluation="\n        eval_input_fn=eval_input_fn," if self.has_evaluation() else "",
            ),
            "configs/params.yaml": self._params(),
        }

    def has_evaluation(self) -> bool:
        return self.plan.evaluation is not None or bool(self.plan.split)

    # -- model.py

    def _write_model(self) -> None:
        anatomy = self.plan.anatomy
        compiled = anatomy.compile
        extra = [compiled[key] for key in ("loss", "metrics", "loss_weights") if key in compiled]
        extra = [e for e in extra if not _is_literal(e)]
        names = {anatomy.model} | {n for e in extra for n in _names(e)}
        chosen = self.script.slice(names, anatomy.compile_at)
        borrowed = self._borrow(chosen)
        lines = self._lines(chosen, self.model)
        head = []
        if borrowed:
            head += ["with tf.init_scope():  # outside of the graph", "    data = load_data(params)"]
        head += [f'{name} = data["{name}"]' for name in sorted(borrowed)]
        self._borrowed = borrowed
        returned = [anatomy.model, *(ast.unparse(e) for e in extra if not self._is_free(e, chosen))]
        local = [e for e in extra if not self._is_free(e, chosen)]
        body = [*head, *lines, f"return {', '.join(returned)}"]
        self.model.functions = [
            _function("build_model(params)", "The network, as the script makes it.", body)
        ]
        self.model.functions += self._model_fn(compiled, local)
        self.model.names |= names | {anatomy.model}

    def _model_fn(self, compiled: dict[str, ast.expr], local: list[ast.expr]) -> list[str]:
        renamed = {ast.unparse(e): f"made_{i}" for i, e in enumerate(local)}

        def text(key: str) -> str:
            return renamed.get(ast.unparse(compiled[key])) or self.script.text_of(compiled[key])

        made = ", ".join(["model", *renamed.values()])
        weights = f", loss_weights={text('loss_weights')}" if "loss_weights" in compiled else ""
        inputs = _as_inputs(self.plan.train)
        metrics = text("metrics") if "metrics" in compiled else "[]"
        in_model_fn = "metrics" in compiled and ast.unparse(compiled["metrics"]) in renamed
        host_call = (
            "(metrics_fn, [labels, outputs])"
            if not in_model_fn
            else "(partial(metrics_fn, metrics), [labels, outputs])"
        )
        signature = (
            "metrics_fn(labels, outputs)" if not in_model_fn else "metrics_fn(metrics, labels, outputs)"
        )
        body = [
            f"{made} = build_model(params)",
            f"outputs = name_outputs(model, model({inputs}, training=mode == ModeKeys.TRAIN))",
            "if mode == ModeKeys.PREDICT:",
            '    predictions = outputs if isinstance(outputs, dict) else {"outputs": outputs}',
            "    return CSEstimatorSpec(mode, predictions=predictions)",
            f"loss = compute_loss({text('loss')}, labels, outputs, model{weights})",
            "if mode == ModeKeys.EVAL:",
        ]
        if in_model_fn:
            body.append(f"    metrics = {metrics}")
        body += [
            f"    return CSEstimatorSpec(mode, loss=loss, host_call={host_call})",
            'return CSEstimatorSpec(mode, loss=loss, train_op=make_train_op(loss, params["optimizer"]))',
        ]
        inner = "metrics" if in_model_fn else metrics
        return [
            _function(
                "model_fn(features, labels, mode, params)", "What run() needs of the network in a mode.", body
            ),
            _function(
                signature,
                "Metrics, which run on the host.",
                [f"return compute_metrics({inner}, labels, outputs)"],
            ),
        ]

    def _is_free(self, node: ast.expr, chosen: Sequence[int]) -> bool:
        """Whether an expression means the same outside of build_model."""
        bound = {name for i in chosen for name in self.script.flow[i].changes}
        bound -= self._constant_names | _imported(self.script.imports)
        return not _names(node) & bound

    def _borrow(self, chosen: list[int]) -> set[str]:
        """Takes statements that load or prepare data out of the model's slice; the names that it then needs of load_data."""
        data = self.data.positions
        plain = self._plain(chosen) | self._constants
        taken = [i for i in chosen if i in data and i not in plain and not is_seed(self.script.flow[i])]
        if not taken:
            return set()
        rest = [i for i in chosen if i not in taken]
        given = {name for i in taken for name in self.script.flow[i].changes}
        read = {name for i in rest for name in self.script.flow[i].reads}
        chosen[:] = rest
        borrowed = given & read - _imported(self.script.imports)
        if borrowed and self.plan.train.kind != "arrays":
            raise RefusalError(
                self.script.flow[taken[0]].node,
                f"the model needs '{sorted(borrowed)[0]}' of the dataset's code",
                "Write its value.",
            )
        self._load_returns |= borrowed
        return borrowed

    def _plain(self, chosen: Sequence[int]) -> set[int]:
        """Statements that give names to numbers and texts, which cost nothing to be made twice."""
        known = _imported(self.script.imports) | self._constant_names
        found: set[int] = set()
        for position in chosen:
            statement = self.script.flow[position]
            is_call = any(isinstance(n, ast.Call) for n in ast.walk(statement.node))
            if isinstance(statement.node, ast.Assign) and not is_call and statement.reads <= known:
                found.add(position)
                known = known | statement.changes
        return found

    # -- data.py

    def _write_data(self) -> None:
        plan = self.plan
        self._load_returns: set[str] = set()
        arrays = [f for f in (plan.train, plan.evaluation) if f is not None and f.kind == "arrays"]
        self._load_slice: list[int] = []
        if arrays:
            names = {n for f in arrays for e in (f.features, f.labels) if e is not None for n in _names(e)}
            until = max(f.until for f in arrays)
            self._load_slice = self._data_slice(names, until)
            self.data.positions |= set(self._load_slice)
            self.data.names |= names
        for feed, name in ((plan.train, "train"), (plan.evaluation, "eval")):
            if feed is not None and feed.kind == "dataset":
                names = _names(feed.features)
                chosen = self._data_slice(names, feed.until)
                if set(chosen) & set(self._load_slice) - self._constants:
                    self.data.positions |= set(chosen)
                self.data.positions |= set(chosen)
                self.data.names |= names
                body = [*self._lines(chosen, self.data), f"return {ast.unparse(feed.features)}"]
                self.data.functions.append(
                    _function(f"{name}_dataset(params)", "The script's own dataset.", body)
                )

    def _data_slice(self, names: set[str], until: int) -> list[int]:
        chosen = self.script.slice(names - {self.plan.anatomy.model}, until)
        return [i for i in chosen if i != self.plan.anatomy.compile_at]

    def _finish_data(self) -> None:
        """Written last, since the model may need more of load_data."""
        plan = self.plan
        functions: list[str] = []
        arrays = [
            (n, f)
            for n, f in (("train", plan.train), ("eval", plan.evaluation))
            if f is not None and f.kind == "arrays"
        ]
        if arrays:
            lines = self._lines(self._load_slice, self.data)
            entries = [
                f'"{name}": ({_nested(f.features, "input")}, {_nested(f.labels, "output")}),'
                for name, f in arrays
            ]
            entries += [f'"{name}": {name},' for name in sorted(self._load_returns)]
            body = [*lines, "return {", *(f"    {e}" for e in entries), "}"]
            functions += [_LOAD_DATA.strip()]
            functions.append(
                _function(
                    "read_data(params)", "What the script reads and prepares, as it is done there.", body
                )
            )
            self._judge_randomness(lines)
        functions += self.data.functions
        functions.append(self._input_fn("train", plan.train))
        if plan.evaluation is not None:
            functions.append(self._input_fn("eval", plan.evaluation))
        elif plan.split:
            functions.append(self._input_fn("eval", plan.train))
        if arrays:
            functions += [_MAKE_DATASET.strip()]
            if plan.split:
                functions += [_SPLIT.strip()]
        functions.append((_COUNT_ARRAYS if plan.train.kind == "arrays" else _COUNT_DATASET).strip())
        self.data.functions = functions

    def _judge_randomness(self, lines: Sequence[str]) -> None:
        """Data that are split or drawn at random must be the same in training and in evaluation."""
        seeded = any(is_seed(self.script.flow[i]) for i in self._load_slice)
        text = "\n".join(lines)
        split = "train_test_split(" in text and "random_state" not in text
        if not seeded and (split or _DRAWS.search(text)):
            message = "the data are split or drawn at random without a seed: a run that evaluates gets others than the one that trained"
            cure = "Give train_test_split a random_state, or seed the generator before; the script itself did all in one process."
            self.plan.not_said(self.plan.anatomy.fit["x"], message, cure)

    def _input_fn(self, name: str, feed: Feed) -> str:
        repeat = ".repeat()" if name == "train" else ""
        if feed.kind == "dataset":
            body = [f"return {name}_dataset(params){repeat}.prefetch(tf.data.AUTOTUNE)"]
        else:
            source = "train" if self.plan.split else name
            body = ["with tf.init_scope():  # what the script computes, it computes at once"]
            body += [f'    features, labels = load_data(params)["{source}"]']
            if self.plan.split:
                part = "split_at:" if name == "eval" else ":split_at"
                body += [
                    f'    split_at = find_split(features, params["{name}_input"]["validation_split"])',
                    f"    features, labels = (tf.nest.map_structure(lambda a: a[{part}], part) for part in (features, labels))",
                ]
            body += [
                f'return make_dataset(features, labels, params["{name}_input"], params){repeat}.prefetch(tf.data.AUTOTUNE)'
            ]
        what = (
            "Batches for training, again and again." if name == "train" else "Batches for evaluation, once."
        )
        return _function(f"{name}_input_fn(params)", what, body)

    # -- what both share

    def _mark_constants(self) -> None:
        """Statements that functions and classes of the script read: they stay at the top of a file."""
        self._constants: set[int] = set()
        read = {n for s in self.script.definitions.values() for n in s.reads}
        for position, statement in enumerate(self.script.flow):
            if (
                statement.changes & read
                and isinstance(statement.node, ast.Assign)
                and self._is_simple(statement)
            ):
                self._constants.add(position)
        self._constant_names = {n for i in self._constants for n in self.script.flow[i].changes}

    def _is_simple(self, statement: Statement) -> bool:
        known = _imported(self.script.imports) | {
            n for i in self._constants for n in self.script.flow[i].changes
        }
        return statement.reads <= known and not any(
            isinstance(n, ast.Call) and not _is_harmless(n) for n in ast.walk(statement.node)
        )

    def _lines(self, chosen: Sequence[int], part: Part) -> list[str]:
        lines: list[str] = []
        for position in chosen:
            statement = self.script.flow[position]
            part.positions.add(position)
            part.names |= statement.reads
            statement.places.append(part.name)
            if position in self._constants:
                continue
            lines += self._statement_text(statement).splitlines()
        return lines

    def _statement_text(self, statement: Statement) -> str:
        text = statement.text
        if is_seed(statement):
            seed = self.plan.params["runconfig"]["seed"]
            node = statement.node
            assert isinstance(node, ast.Expr)
            assert isinstance(node.value, ast.Call)
            given = node.value.args[0] if node.value.args else None
            if isinstance(given, ast.Constant) and given.value == seed:
                return f'{ast.unparse(node.value.func)}(params["runconfig"]["seed"])'
        if ".parse_args()" in text:
            message = "the script's command line is not run.py's: its defaults are used"
            self.plan.not_said(
                statement.node,
                message,
                "Put what you want to change into configs/params.yaml, and read params in its place.",
            )
            text = text.replace(".parse_args()", ".parse_args([])")
        is_long = any(
            isinstance(n, ast.Constant) and isinstance(n.value, str) and n.lineno != n.end_lineno
            for n in ast.walk(statement.node)
        )
        return ast.unparse(ast.parse(text)) if is_long else text  # its lines may not be moved

    def _shared_definitions(self) -> dict[str, set[str]]:
        """Functions and classes by the files that need them."""
        self._finish_data()
        places: dict[str, set[str]] = {}
        for part in (self.model, self.data):
            for statement in self.script.needed_definitions(set(part.names)):
                name = next(iter(statement.changes))
                places.setdefault(name, set()).add(part.name)
        return places

    def _text(self, part: Part, doc: str, head: str, places: dict[str, set[str]]) -> str:
        own = [n for n, where in places.items() if where == {part.name}]
        shared = [n for n, where in places.items() if len(where) > 1]
        body = "\n\n\n".join([*(self._definition(n) for n in own), *part.functions])
        constants = [
            self.script.flow[i].text for i in sorted(self._constants) if self._reads_constant(i, body)
        ]
        text = "\n".join(constants) + ("\n\n\n" if constants else "") + body
        used = _identifiers(text)
        lines = [_legacy(s) for s in self.script.imports if s.changes & used]
        lines += [line for line in head.strip().splitlines() if _is_wanted(line, used)]
        if part is self.model and self._borrowed:
            lines.append("from data import load_data")
        if "partial(" in body and part is self.model:
            lines.append("from functools import partial")
        if set(shared) & used:
            lines.append(f"from utils import {', '.join(sorted(set(shared) & used))}")
        if "tf" in used and not any(s.changes == {"tf"} and s.text in lines for s in self.script.imports):
            lines.append("import tensorflow as tf")
        imports = _order(lines)
        return f'"""{doc}"""\n\nfrom __future__ import annotations\n\n{imports}\n\n\n{text}\n'

    def _definition(self, name: str) -> str:
        statement = self.script.definitions[name]
        statement.places.append("")
        return statement.text

    def _reads_constant(self, position: int, text: str) -> bool:
        names = self.script.flow[position].changes
        used = _identifiers(text)
        waiting = set(names)
        for other in self._constants:  # constants that other constants need
            if self.script.flow[other].changes & used:
                used |= self.script.flow[other].reads
        return bool(waiting & used)

    def _utils(self, places: dict[str, set[str]]) -> str:
        shared = [n for n, where in places.items() if len(where) > 1]
        body = "\n\n\n".join(self._definition(n) for n in shared)
        constants = [
            self.script.flow[i].text
            for i in sorted(self._constants)
            if shared and self._reads_constant(i, body)
        ]
        text = "\n".join([*constants, ""]) if constants else ""
        used = _identifiers(text + body)
        lines = [_legacy(s) for s in self.script.imports if s.changes & used]
        imports = "\n".join(lines) + "\n" if lines else ""
        steps = "steps_per_epoch" not in self.plan.params["runconfig"]
        return _UTILS.format(
            script=self.script_name,
            imports=imports,
            body=f"{text}{body}\n\n\n" if shared else "",
            count=_COUNT_CALL if steps else "",
        )

    def _params(self) -> str:
        lines = [f"# Settings of {self.script_name}."]
        for section, values in self.plan.params.items():
            lines += ["", f"{section}:" if values else f"{section}: {{}}"]
            for key, value in values.items():
                comment = self.plan.comments.get(f"{section}.{key}")
                behind = f"  # {comment}" if comment else ""
                if isinstance(value, dict):
                    lines += [f"  {key}:{behind}", *(f"    {k}: {show(v)}" for k, v in value.items())]
                else:
                    lines.append(f"  {key}: {show(value)}{behind}")
        return "\n".join(lines) + "\n"


def _function(signature: str, doc: str, body: Sequence[str]) -> str:
    return f'def {signature}:\n    """{doc}"""\n' + textwrap.indent("\n".join(body), "    ")


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _identifiers(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


def _imported(imports: Sequence[Statement]) -> set[str]:
    return {name for statement in imports for name in statement.changes}


def _legacy(statement: Statement) -> str:
    """An import of Keras as TensorFlow's own: `keras` alone is Keras 3, which does not build graphs."""
    node = statement.node
    if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "keras":
        if node.module == "keras.utils" and [a.name for a in node.names] == ["np_utils"]:
            return f"from tensorflow.keras import utils as {node.names[0].asname or 'np_utils'}"
        module = re.sub(r"^(keras\.layers)\.\w+$|^(keras\.utils)\.np_utils$", r"\1\2", node.module)
        return ast.unparse(ast.ImportFrom(f"tensorflow.{module}", node.names, 0))
    if isinstance(node, ast.Import) and [a.name for a in node.names] == ["keras"]:
        name = node.names[0].asname
        return "from tensorflow import keras" + (f" as {name}" if name else "")
    return statement.text


def _is_wanted(line: str, used: set[str]) -> bool:
    names = line.rpartition("import ")[2]
    return "portwright.tensorflow " in names or bool(
        {n.partition(" as ")[2] or n for n in names.split(", ")} & used
    )


def _order(lines: Sequence[str]) -> str:
    """Imports as they are usually ordered, but what chooses the Keras before what loads TensorFlow."""
    groups: list[list[str]] = [[], [], [], []]
    for line in dict.fromkeys(line.strip() for line in lines):
        module = line.split()[1].partition(".")[0]
        if module in sys.stdlib_module_names:
            groups[0].append(line)
        elif module in ("data", "utils"):
            groups[3].append(line)
        else:
            groups[1 if module == "portwright" else 2].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _is_harmless(call: ast.Call) -> bool:
    """Made without reading anything: an initializer, a regularizer, a number."""
    name = ast.unparse(call.func)
    return any(
        word in name
        for word in ("initializers", "regularizers", "range", "len", "int", "float", "list", "dict", "tuple")
    )


def _nested(node: ast.expr | None, name: str) -> str:
    """An array, or a dict of those in a list."""
    if node is None:
        return "None"
    if isinstance(node, (ast.List, ast.Tuple)):
        return "{" + ", ".join(f'"{name}_{i}": {ast.unparse(e)}' for i, e in enumerate(node.elts)) + "}"
    return ast.unparse(node)


def _as_inputs(feed: Feed) -> str:
    if feed.kind == "arrays" and isinstance(feed.features, (ast.List, ast.Tuple)):
        return "[" + ", ".join(f'features["input_{i}"]' for i in range(len(feed.features.elts))) + "]"
    return "features"


_MODEL_HEAD = """
from portwright.tensorflow import CSEstimatorSpec, ModeKeys
from portwright.tensorflow.keras_parts import compute_loss, compute_metrics, make_train_op, name_outputs
"""
_DATA_HEAD = """
import portwright.tensorflow  # before TensorFlow, since it chooses the Keras
import numpy as np
"""
_DRAWS = re.compile(
    r"\b(?:np|numpy)\.random\.(?!seed|default_rng\(\d|RandomState\(\d)|\brandom\.(?:shuffle|sample|random)\("
)
_LOAD_DATA = '''
_LOADED = {}


def load_data(params):
    """What read_data gives, read once."""
    if not _LOADED:
        _LOADED.update(read_data(params))
    return _LOADED
'''
_MAKE_DATASET = '''
def make_dataset(features, labels, options, params):
    """One pass over arrays, in batches."""
    arrays = tf.nest.map_structure(as_array, (features, labels))
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if options.get("shuffle"):
        dataset = dataset.shuffle(count_samples(arrays), seed=params["runconfig"]["seed"])
    return dataset.batch(options["batch_size"], drop_remainder=options["drop_last"])


def as_array(values):
    """Numbers with a point in the precision that Keras computes in."""
    array = np.asarray(values)
    return array.astype(tf.keras.backend.floatx()) if np.issubdtype(array.dtype, np.floating) else array


def count_samples(arrays):
    return len(tf.nest.flatten(arrays)[0])
'''
_SPLIT = '''
def find_split(features, fraction):
    """Where the samples for evaluation begin: the last ones, as in fit()."""
    return int(count_samples(features) * (1.0 - fraction))
'''
_COUNT_ARRAYS = '''
def count_batches(params):
    """Steps of an epoch."""
    features, _ = load_data(params)["train"]
    options = params["train_input"]
    num_samples = int(count_samples(features) * (1.0 - options.get("validation_split", 0.0)))
    short = 0 if options["drop_last"] else options["batch_size"] - 1
    return (num_samples + short) // options["batch_size"]
'''
_COUNT_DATASET = '''
def count_batches(params):
    """Steps of an epoch; a dataset that does not know its length is gone through once."""
    dataset = train_dataset(params)
    known = int(dataset.cardinality())
    return known if known >= 0 else sum(1 for _ in dataset)
'''
_COUNT_CALL = """    run = params["runconfig"]
    if run.get("max_steps") is None and run.get("steps_per_epoch") is None:
        from data import count_batches

        run["steps_per_epoch"] = count_batches(params)
"""
_UTILS = '''"""Defaults of params.yaml, and what model.py and data.py of {script} share."""

from __future__ import annotations

{imports}from portwright.job.params import get_params as read_params


{body}def get_params(params_file):
    return set_defaults(read_params(params_file))


def set_defaults(params):
    """Fills in what configs/params.yaml leaves out."""
    for section in ("train_input", "eval_input", "model", "optimizer", "runconfig"):
        params.setdefault(section, {{}})
{count}    return params
'''
_RUN = '''"""Trains and evaluates this model: python run.py CPU --mode train --params configs/params.yaml"""

from portwright.tensorflow import run

from data import {inputs}
from model import model_fn
from utils import set_defaults


def main() -> None:
    run(
        model_fn=model_fn,
        train_input_fn=train_input_fn,{evaluation}
        default_params_fn=set_defaults,
    )


if __name__ == "__main__":
    main()
'''
