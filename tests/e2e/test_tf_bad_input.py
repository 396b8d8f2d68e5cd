"""Bad input of every kind to a TensorFlow folder: one line with the cure, status 2, no traceback, nothing lost."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from conftest import TRAIN, Folder
from tf_folders import tf_folder  # noqa: F401

CASES: list[tuple[Callable[[Folder], None], str]] = []


def bad(expected: str) -> Callable[[Callable[[Folder], None]], Callable[[Folder], None]]:
    """Registers a way to break a folder and what the error must speak of."""

    def register(case: Callable[[Folder], None]) -> Callable[[Folder], None]:
        CASES.append((case, expected))
        return case

    return register


# -- the command line and params.yaml ------------------------------------------------------------------------


@bad("nosuch.yaml")
def missing_params_file(f: Folder) -> None:
    f.arguments = ("CPU", "--mode", "train", "--params", "configs/nosuch.yaml")


@bad("configs/params.yaml:18: optimizer.learning_rat")
def misspelt_optimizer_key(f: Folder) -> None:
    f.edit("configs/params.yaml", "learning_rate: 0.002", "learning_rat: 0.002")


@bad("model.hidden_size")
def misspelt_key_of_a_user_schema(f: Folder) -> None:
    f.edit("configs/params.yaml", "hidden_sizes:", "hidden_size:")


@bad("params.yaml")
def yaml_syntax(f: Folder) -> None:
    f.edit("configs/params.yaml", "optimizer:", "optimizer: [")


@bad("Did you mean 'Adam'")
def unknown_optimizer(f: Folder) -> None:
    f.edit("configs/params.yaml", "AdamW", "Adem")


@bad("Muon")
def optimizer_that_tensorflow_lacks(f: Folder) -> None:
    f.edit("configs/params.yaml", "AdamW", "Muon")


@bad("how long")
def nothing_says_how_long(f: Folder) -> None:
    f.edit("configs/params.yaml", "  max_steps: 1000\n", "")
    f.arguments = TRAIN[:-2]


@bad("steps_per_epoch")
def epochs_of_unknown_length(f: Folder) -> None:
    f.arguments = (*TRAIN[:-2], "--num_epochs", "2", "-D", "runconfig.max_steps=null")


@bad("runconfig.precision is 'bf16'")
def precision_of_pytorch(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "runconfig.precision=bf16")


@bad("runconfig.compile is True")
def compile_of_pytorch(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "runconfig.compile=true")


@bad("--dist_addr")
def flag_of_torch_processes(f: Folder) -> None:
    f.arguments = (*TRAIN, "--dist_addr", "localhost:1234")


@bad("trian")
def unknown_mode(f: Folder) -> None:
    f.arguments = ("CPU", "--mode", "trian", "--params", "configs/params.yaml")


@bad("checkpoint_steps is 0")
def evaluation_without_checkpoints(f: Folder) -> None:
    f.arguments = ("CPU", "--mode", "train_and_eval", *TRAIN[3:], "-D", "runconfig.checkpoint_steps=0")


# -- data.py -------------------------------------------------------------------------------------------------


@bad("train_input_fn returned None")
def input_fn_returns_nothing(f: Folder) -> None:
    f.edit("data.py", "def eval_input_fn", "def train_input_fn(params):\n    pass\n\n\ndef eval_input_fn")


@bad("train_input_fn returned a ndarray of numpy")
def input_fn_returns_an_array(f: Folder) -> None:
    f.edit(
        "data.py",
        "def eval_input_fn",
        "def train_input_fn(params):\n    return read_digits('train')[0]\n\n\ndef eval_input_fn",
    )


@bad("3 items")
def input_fn_gives_three_things(f: Folder) -> None:
    f.edit("data.py", "from_tensor_slices((images, labels))", "from_tensor_slices((images, labels, labels))")


@bad("no labels: let the input function give (features, labels)")
def labels_missing(f: Folder) -> None:
    f.edit("data.py", "from_tensor_slices((images, labels))", "from_tensor_slices(images)")


@bad("features float64[64,8,8,1]")
def feature_dtype(f: Folder) -> None:
    f.edit("data.py", "astype(np.float32)", "astype(np.float64)")
    f.edit("model.py", "    policy = ", "    images = images + tf.ones([], tf.float32)\n    policy = ")


@bad("train_input_fn gave no batch")
def batch_larger_than_the_data(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "train_input.batch_size=5000")


@bad("eval_input_fn gave no batch")
def no_batch_to_evaluate(f: Folder) -> None:
    assert f.run() == 0
    more = ("-D", "eval_input.batch_size=5000", "-D", "eval_input.drop_last=true")
    f.arguments = ("CPU", "--mode", "eval", "--params", "configs/params.yaml", *more)


@bad("features holds 64 non-finite value(s)")
def nan_data(f: Folder) -> None:
    f.edit("data.py", "(pixels[chosen] / 16)", "np.where(np.arange(64) == 3, np.nan, pixels[chosen] / 16)")
    f.arguments = (*TRAIN, "-D", "model.activation_fn=tanh")  # a relu makes 0 of a NaN


@bad("data.py:")
def input_fn_raises(f: Folder) -> None:
    f.edit("data.py", 'options["shuffle"]', 'options["shufle"]')


@bad("'cfg2'")
def argument_that_nobody_gives(f: Folder) -> None:
    f.edit("data.py", "train_input_fn(params: dict[str, Any]", "train_input_fn(params: dict[str, Any], cfg2")


@bad("/nowhere/at/all")
def missing_data_dir(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "train_input.data_dir=/nowhere/at/all")


@bad("train-images")
def truncated_idx_file(f: Folder) -> None:
    (f.path / "mnist").mkdir()
    header = struct.pack(">BBBBIII", 0, 0, 8, 3, 100, 28, 28)
    (f.path / "mnist" / "train-images-idx3-ubyte").write_bytes(header + b"\x01" * 500)
    f.arguments = (*TRAIN, "-D", "train_input.data_dir=mnist")


@bad("the input pipeline failed: NotFoundError: nosuch.tfrecord")
def missing_record_file(f: Folder) -> None:
    f.edit(
        "data.py",
        'dataset.shuffle(len(images), seed=params["runconfig"]["seed"])',
        "dataset.concatenate(tf.data.TFRecordDataset('nosuch.tfrecord').map(lambda r: (images[0], labels[0]))).skip(1437)",
    )


@bad("the input pipeline failed: InvalidArgumentError: assertion failed: [bad sample]")
def sample_that_fails(f: Folder) -> None:
    f.edit(
        "data.py",
        "    return dataset.batch(",
        "    def check(image, label):\n"
        "        with tf.control_dependencies([tf.debugging.Assert(label < 9, ['bad sample'])]):\n"
        "            return tf.identity(image), label\n"
        "    return dataset.map(check).batch(",
    )


# -- model.py ------------------------------------------------------------------------------------------------


@bad("model_fn returned None in mode 'train'")
def model_fn_returns_nothing(f: Folder) -> None:
    f.edit(
        "model.py",
        "return EstimatorSpec(mode, loss=loss, train_op",
        "EstimatorSpec(mode, loss=loss, train_op",
    )


@bad("model_fn returned a tensor in mode 'train'")
def model_fn_returns_the_loss(f: Folder) -> None:
    f.edit("model.py", "    if mode == ModeKeys.EVAL:", "    return loss\n    if mode == ModeKeys.EVAL:")


@bad("train_op")
def no_train_op(f: Folder) -> None:
    f.edit("model.py", ', train_op=make_train_op(loss, params["optimizer"])', "")


@bad("must be one")
def loss_that_is_a_vector(f: Folder) -> None:
    f.edit("model.py", "loss = tf.reduce_mean(", "loss = (")


@bad("no trainable variable")
def loss_without_a_gradient(f: Folder) -> None:
    f.edit("model.py", "logits=logits))", "logits=tf.stop_gradient(logits)))")


@bad("model.py:")
def model_that_raises(f: Folder) -> None:
    f.edit("model.py", 'params["hidden_sizes"]', 'params["hiden_sizes"]')


@bad("model.py:")
def op_that_fails_in_a_step(f: Folder) -> None:
    f.edit(
        "model.py",
        "    digit = ",
        "    logits = tf.debugging.assert_less(logits, -1e9) or logits\n    digit = ",
    )
    f.edit(
        "model.py",
        "    logits = tf.debugging.assert_less(logits, -1e9) or logits\n",
        "    with tf.control_dependencies([tf.debugging.Assert(logits[0, 0] < -1e9, ['too large'])]):\n"
        "        logits = tf.identity(logits)\n",
    )


@bad("model.input_size is 784, and an image has 64 pixels")
def another_image_size(f: Folder) -> None:
    f.arguments = (*TRAIN, "-D", "model.input_size=784")


@bad("features")
def model_fn_without_features(f: Folder) -> None:
    f.edit("model.py", "features: tf.Tensor,", "images: tf.Tensor,")
    f.edit("model.py", "build_mlp(features,", "build_mlp(images,")


@bad("SystemExit(0)")
def model_fn_that_ends_the_process(f: Folder) -> None:
    f.edit("model.py", "    digit = ", "    raise SystemExit(0)\n    digit = ")


@bad("ended the training after step 2 of 4")
def hook_that_ends_the_process(f: Folder) -> None:
    hook = """class Leave(tf.compat.v1.train.SessionRunHook):
    calls = 0
    def after_run(self, context, values):
        self.calls += 1
        if self.calls == 3:
            exit()


def model_fn("""
    f.edit("model.py", "def model_fn(", hook)
    f.edit("model.py", "train_op=make_train_op(", "training_hooks=[Leave()], train_op=make_train_op(")
    f.arguments = (*TRAIN, "-D", "runconfig.log_steps=1")


# -- checkpoints and folders ---------------------------------------------------------------------------------


@bad("hidden_0/kernel")
def checkpoint_of_another_model(f: Folder) -> None:
    assert f.run() == 0
    f.arguments = (*TRAIN[:-1], "8", "-D", "model.hidden_sizes=[96]")


@bad("model.ckpt-4")
def missing_checkpoint(f: Folder) -> None:
    assert f.run() == 0
    f.arguments = (*TRAIN, "--checkpoint_path", "model_dir/model.ckpt-5", "--model_dir", "other")


@bad("is damaged")
def truncated_checkpoint(f: Folder) -> None:
    assert f.run() == 0
    path = f.path / "model_dir" / "model.ckpt-4.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-100])
    f.arguments = (*TRAIN[:-1], "8", "--checkpoint_path", "model_dir/model.ckpt-4", "--model_dir", "other")


@bad("has been trained")
def evaluation_without_a_run(f: Folder) -> None:
    f.arguments = ("CPU", "--mode", "eval", "--params", "configs/params.yaml")


@bad("--checkpoint_path")
def pretrained_without_a_path(f: Folder) -> None:
    f.arguments = (*TRAIN, "--is_pretrained_checkpoint")


@bad("model_dir")
def unwritable_model_dir(f: Folder) -> None:
    (f.path / "file").write_text("not a folder")
    f.arguments = (*TRAIN, "--model_dir", "file/below")


@pytest.mark.parametrize(("case", "expected"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_bad_input(
    tf_folder: Folder,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
    case: Callable[[Folder], None],
    expected: str,
) -> None:
    case(tf_folder)
    capfd.readouterr()
    before = {
        p: p.read_bytes() for p in tf_folder.path.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    status = tf_folder.run()
    captured = capfd.readouterr()
    assert status == 2, captured.err
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, captured.err
    assert expected in errors[0]
    assert "Traceback" not in captured.err
    for path, content in before.items():
        assert path.exists(), f"{path} is gone"
        assert (
            path.read_bytes() == content
            or path.suffix == ".jsonl"
            or "events" in path.name
            or path.name == ".lock"
        )


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("data", "note: the training data ended at step 22 of 40: let train_input_fn repeat() its dataset"),
        ("hook", "note: a hook stopped the training at step 3 of 40."),
    ],
)
def test_an_early_end_is_told(
    tf_folder: Folder,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
    where: str,
    says: str,
) -> None:
    """Both are ways of TensorFlow's to end a training, and so no failure."""
    if where == "data":
        tf_folder.edit("data.py", ".repeat()", "")
    else:
        tf_folder.edit(
            "model.py",
            "def model_fn(",
            "class Stop(tf.compat.v1.train.SessionRunHook):\n"
            "    calls = 0\n"
            "    def after_run(self, context, values):\n"
            "        self.calls += 1\n"
            "        if self.calls == 3:\n"
            "            context.request_stop()\n\n\n"
            "def model_fn(",
        )
        tf_folder.edit(
            "model.py", "train_op=make_train_op(", "training_hooks=[Stop()], train_op=make_train_op("
        )
    tf_folder.arguments = (*TRAIN[:-1], "40")
    assert tf_folder.run() == 0
    assert says in capfd.readouterr().err
