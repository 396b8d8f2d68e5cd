"""The `runconfig` section of params.yaml: how long to run, what to save, what to log; and the step that a run ends at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from portwright.errors import UserError
from portwright.job.execution import Execution, PipelineSection, StreamingSection
from portwright.job.section import Section, contradiction


class ClusterKeys(Section):
    """Keys of a Cerebras cluster: model zoo files carry them, and other targets have no use for them."""

    num_csx: int | None = Field(default=None, ge=1, description="CS systems to use.")
    num_workers_per_csx: int | None = Field(default=None, ge=0, description="Input workers a CS system.")
    num_wgt_servers: int | None = Field(default=None, ge=1, description="Most weight servers to use.")
    num_act_servers: int | None = Field(default=None, ge=1, description="Activation servers a CS system.")
    num_replicas: int | None = Field(default=None, ge=1, description="Copies of the model on one CS system.")
    multireplica: bool | None = Field(default=None, description="Use as many copies of the model as fit.")
    execution_strategy: Literal["pipeline", "weight_streaming"] | None = Field(
        default=None,
        description="Where the weights live: on the wafer, or streamed to it. On CPU and GPU it chooses where execution is auto.",
    )
    mount_dirs: list[str] | None = Field(
        default=None, description="Folders that the cluster's containers need."
    )
    python_paths: list[str] | None = Field(
        default=None, description="Import paths for the cluster's workers."
    )
    compile_dir: str | None = Field(
        default=None, description="Where compiled artifacts are kept between runs."
    )
    credentials_path: str | None = Field(default=None, description="Certificate of the cluster.")
    mgmt_address: str | None = Field(default=None, description="Host and port that manage the cluster.")
    mgmt_namespace: str | None = Field(default=None, description="Namespace of the cluster to run in.")
    debug_args_path: str | None = Field(
        default=None, description="File with debugging options of the cluster."
    )
    job_labels: list[str] | None = Field(default=None, description="Labels of the job, each as key=value.")
    job_time_sec: int | None = Field(
        default=None, gt=0, description="Seconds after which the cluster ends the job."
    )
    job_priority: Literal["p1", "p2", "p3"] | None = Field(default=None, description="Rank in the queue.")
    transfer_processes: int | None = Field(default=None, ge=1, description="Processes that transfer weights.")
    compile_crd_memory_gi: int | None = Field(default=None, ge=-1, description="GiB for compiling; -1: all.")
    execute_crd_memory_gi: int | None = Field(
        default=None, ge=-1, description="GiB for coordinating; -1: all."
    )
    wrk_memory_gi: int | None = Field(default=None, ge=-1, description="GiB for each input worker; -1: all.")
    precision_opt_level: int | None = Field(
        default=None,
        ge=0,
        le=2,
        description="How far precision may be traded for speed, from 0 (not at all) to 2.",
    )
    micro_batch_size: int | Literal["auto", "explore"] | None = Field(
        default=None, description="Samples computed at once on each CS system, or who is to choose them."
    )
    use_cs_grad_accum: bool | None = Field(default=None, description="Let the compiler split batches.")
    use_appliance_data: bool | None = Field(
        default=None, description="Stream data through the cluster's workers."
    )
    save_summary_steps: int | None = Field(
        default=None, ge=0, description="TensorFlow's own; here TensorBoard follows log_steps."
    )
    show_debug_metrics: bool | None = Field(default=None, description="Print the SDK's own timings.")

    @field_validator("micro_batch_size")
    @classmethod
    def _not_empty(cls, size: int | str | None) -> int | str | None:
        if isinstance(size, int) and size < 1:
            raise ValueError("a micro batch has at least one sample")
        return size

    def cluster_keys(self) -> dict[str, Any]:
        """Those keys of a Cerebras cluster that the params set."""
        return {
            name: getattr(self, name) for name in ClusterKeys.model_fields if name in self.model_fields_set
        }


class RunConfig(ClusterKeys):
    """How a run goes, whatever the model; a step is one update of the weights."""

    aliases: ClassVar[Mapping[str, str]] = {
        "checkpoints_steps": "checkpoint_steps",
        "save_checkpoints_steps": "checkpoint_steps",
        "keep_checkpoint_max": "max_checkpoints",
        "log_step_count_steps": "log_steps",
    }

    rare: ClassVar[Collection[str]] = tuple(ClusterKeys.model_fields)

    max_steps: int | None = Field(
        default=None,
        gt=0,
        description="Train until this many steps are done in all, those before a resume included.",
    )
    num_steps: int | None = Field(
        default=None, gt=0, description="Train this many steps more, on top of those of the checkpoint."
    )
    num_epochs: int | None = Field(
        default=None,
        gt=0,
        description="Train until the data have been seen this many times in all; not with num_steps.",
    )
    steps_per_epoch: int | None = Field(
        default=None,
        gt=0,
        description="Length of an epoch; needed with num_epochs where the data have no length.",
    )
    eval_steps: int | None = Field(
        default=None, gt=0, description="Batches to evaluate on; left out: all of them."
    )
    eval_frequency: int | None = Field(
        default=None,
        ge=0,
        description="In train_and_eval: steps between evaluations. 0: only at the end. Left out: as checkpoint_steps.",
    )
    log_steps: int = Field(default=100, ge=0, description="Steps between logged values. 0: only at the end.")
    checkpoint_steps: int = Field(
        default=1000,
        ge=0,
        description="Steps between checkpoints; the last step is saved too. 0: never save.",
    )
    max_checkpoints: int | None = Field(
        default=5, ge=0, description="Checkpoints to keep, the newest ones. 0 or null: all."
    )
    save_initial_checkpoint: bool = Field(default=False, description="Also save before the first step.")
    autoload_last_checkpoint: bool = Field(
        default=True, description="Resume from the last good checkpoint in model_dir."
    )
    checkpoint_path: str | None = Field(default=None, description="Start from this checkpoint instead.")
    is_pretrained_checkpoint: bool = Field(
        default=False, description="Take only the weights of checkpoint_path, and start at step 0."
    )
    load_checkpoint_states: Literal["model"] | None = Field(
        default=None,
        description="The newer spelling of is_pretrained_checkpoint: only the weights are taken.",
    )
    model_dir: str | None = Field(
        default=None, description="Where checkpoints and logs go; left out: model_dir beside run.py."
    )
    mode: Literal["train", "eval", "train_and_eval", "eval_all", "predict"] | None = Field(
        default=None, description="Accepted from model zoo files; the command line decides."
    )
    validate_only: bool = Field(
        default=False,
        description="Accepted from model zoo files while it is false; the flag --validate_only turns it on.",
    )
    compile_only: bool = Field(
        default=False,
        description="Accepted from model zoo files while it is false; the flag --compile_only turns it on.",
    )
    save_losses: bool = Field(default=True, description="Keep the loss of every step in the run's log.")
    check_loss_values: bool = Field(default=True, description="Stop the run when a loss is NaN or infinite.")
    enable_summaries: bool = Field(default=True, description="Write TensorBoard files.")
    seed: int = Field(
        default=1, ge=0, lt=2**32, description="Seed of weights, shuffling and everything else random."
    )
    precision: Literal["fp32", "bf16", "fp16", "fp64"] | None = Field(
        default=None,
        description="Number format to compute in; left out: what model.mixed_precision and model.fp16_type say.",
    )
    compile: bool = Field(default=False, description="Compile the model with torch.compile.")
    distributed: Literal["auto", "ddp", "fsdp", "none"] = Field(
        default="auto", description="How several processes share the work; auto: ddp if there are several."
    )
    enable_distributed: bool | None = Field(
        default=None,
        description="The older switch; true contradicts distributed: none, else distributed decides.",
    )
    sync_batchnorm: bool = Field(default=False, description="Batch statistics over all processes; GPUs only.")

    execution: Execution = Field(
        default="auto",
        description="Where weights live while training: `resident` on the device, `pipelined` over processes, `streaming` through the device; "
        "auto: resident if it fits, else streaming.",
    )
    streaming: StreamingSection = Field(
        default_factory=StreamingSection, description="How weights are streamed: a section of its own."
    )
    pipeline: PipelineSection = Field(
        default_factory=PipelineSection, description="How layers are pipelined: a section of its own."
    )

    @field_validator("streaming", "pipeline", mode="before")
    @classmethod
    def _named_and_left_empty(cls, section: Any) -> Any:
        return {} if section is None else section

    @field_validator("max_checkpoints")
    @classmethod
    def _zero_keeps_all(cls, count: int | None) -> int | None:
        return count or None

    @model_validator(mode="before")
    @classmethod
    def _weights_only(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("load_checkpoint_states") == "model":
            return {"is_pretrained_checkpoint": True, **data}
        return data

    @model_validator(mode="after")
    def _says_one_thing(self) -> RunConfig:
        if self.num_epochs is not None and self.num_steps is not None:
            raise contradiction(
                f"num_epochs is {self.num_epochs} and num_steps is {self.num_steps}; keep one of them",
                "num_epochs",
                "num_steps",
            )
        if self.load_checkpoint_states and not self.is_pretrained_checkpoint:
            raise contradiction(
                f"is_pretrained_checkpoint is false, but load_checkpoint_states is '{self.load_checkpoint_states}'",
                "is_pretrained_checkpoint",
                "load_checkpoint_states",
            )
        for key in ("validate_only", "compile_only"):
            if getattr(self, key):
                raise contradiction(f"true is for the command line: give --{key} there", key)
        if self.enable_distributed and self.distributed == "none":
            raise contradiction(
                "enable_distributed is true, but distributed is 'none'", "enable_distributed", "distributed"
            )
        if self.distributed == "fsdp" and self.execution in ("pipelined", "streaming"):
            raise contradiction(
                f"distributed is 'fsdp', which shares out resident weights, but execution is '{self.execution}'; keep one of them",
                "distributed",
                "execution",
            )
        return self

    @property
    def wanted_execution(self) -> Execution:
        """What `execution` asks for; the older execution_strategy speaks where it is auto."""
        if self.execution == "auto" and self.execution_strategy is not None:
            return "pipelined" if self.execution_strategy == "pipeline" else "streaming"
        return self.execution

    @property
    def eval_every(self) -> int:
        """Steps between evaluations in train_and_eval; 0: only at the end, where there is one anyway."""
        return self.checkpoint_steps if self.eval_frequency is None else self.eval_frequency


def find_last_step(config: RunConfig, first_step: int, steps_in: Callable[[int], int | None]) -> int:
    """The step that a run ends at; `steps_in` says how many steps so many epochs take, or None where that is not known."""
    ends = []
    if config.max_steps is not None:
        ends.append(config.max_steps)
    if config.num_steps is not None:
        ends.append(first_step + config.num_steps)
    if config.num_epochs is not None:
        ends += _steps_in(config, config.num_epochs, steps_in, has_end=bool(ends))
    if not ends:
        raise UserError(
            "nothing says how long to train.",
            "Set runconfig.max_steps or num_epochs, or give --max_steps.",
        )
    return min(ends)


def _steps_in(
    config: RunConfig, num_epochs: int, steps_in: Callable[[int], int | None], *, has_end: bool
) -> list[int]:
    """The steps of some epochs; empty where they are not known and the run has another end."""
    per_epoch = config.steps_per_epoch
    num_steps = per_epoch * num_epochs if per_epoch is not None else steps_in(num_epochs)
    if num_steps is None and has_end:
        return []
    if num_steps is None:
        raise UserError(
            "runconfig.num_epochs is set, but the length of the training data is not known.",
            "Set runconfig.steps_per_epoch, or use runconfig.max_steps.",
        )
    if num_steps == 0:
        raise UserError(
            f"{num_epochs} epoch(s) have fewer batches than optimizer.grad_accum_steps, so not one update comes about.",
            "Lower grad_accum_steps, or train for more epochs.",
        )
    return [num_steps]
