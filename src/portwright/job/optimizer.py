"""The `optimizer` section of params.yaml: what to optimize with, as a specification that a backend realises."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from portwright.errors import UserError, suggest
from portwright.job.schedules import Schedule, parse_schedule
from portwright.job.section import Section, contradiction

__all__ = ["DEFAULT_OPTIMIZER", "OPTIMIZERS", "OptimizerParams", "optimizer_schema"]

DEFAULT_OPTIMIZER = "Adam"

Decay = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
NotPositive = Annotated[float, Field(le=0)]
Shrinking = Annotated[float, Field(gt=0, lt=1)]
Growing = Annotated[float, Field(gt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
NamePart = Annotated[str, Field(min_length=1)]
LearningRate = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "object", "required": ["scheduler"]},
                {"type": "array", "items": {"type": "object", "required": ["scheduler"]}, "minItems": 1},
            ]
        }
    ),
]


class OptimizerParams(Section):
    """The keys that every optimizer takes; model zoo and torch spellings both work."""

    aliases: ClassVar[Mapping[str, str]] = {"lr": "learning_rate", "weight_decay": "weight_decay_rate"}
    # Keys that stand for two: `betas: [0.9, 0.98]` for beta1 and beta2.
    pairs: ClassVar[Mapping[str, tuple[str, str]]] = {}

    optimizer_type: str = Field(description="The optimizer, in any case; each has further keys of its own.")
    learning_rate: LearningRate = Field(
        description="A number, a schedule, or a list of schedules that run one after another.",
    )
    disable_lr_steps_reset: bool = Field(
        False,
        description="In a list of schedules: each one counts steps from the start of the run, not from its own start.",
    )
    weight_decay_rate: NotNegative = Field(
        0.0,
        description="Weight decay of everything but biases, norms and what exclude_from_weight_decay names.",
    )
    exclude_from_weight_decay: list[NamePart] | None = Field(
        None,
        description="Parts of parameter names that are not decayed, beside biases and norms; an empty list decays everything.",
    )
    max_gradient_norm: NotNegative | None = Field(
        None,
        description="Scale all gradients so that their joint norm stays under this; 0 or left out: never.",
    )
    max_gradient_value: NotNegative | None = Field(
        None, description="Clamp each element of a gradient to plus or minus this; 0 or left out: never."
    )
    grad_accum_steps: int = Field(1, ge=1, description="Batches whose gradients are averaged for one update.")
    loss_scaling_factor: Positive | Literal["dynamic"] = Field(
        1.0, description='Factor on the loss before backward, taken out of the gradients again; or "dynamic".'
    )
    initial_loss_scale: Positive = Field(
        2.0**15, description="Where dynamic loss scaling starts, within min_loss_scale and max_loss_scale."
    )
    steps_per_increase: int = Field(
        2000, ge=1, description="Finite steps in a row after which dynamic loss scaling doubles its factor."
    )
    min_loss_scale: Positive = Field(2.0**-14, description="Dynamic loss scaling goes no lower.")
    max_loss_scale: Positive | None = Field(
        None, description="Dynamic loss scaling goes no higher; left out: no limit."
    )
    log_summaries: bool = Field(False, description="Log the norm of the gradients beside the loss.")

    @property
    def clips(self) -> bool:
        return self.max_gradient_norm is not None or self.max_gradient_value is not None

    @property
    def is_plain(self) -> bool:
        """Whether each batch's gradients are taken as they come."""
        return self.grad_accum_steps == 1 and self.loss_scaling_factor == 1.0 and not self.clips

    @property
    def schedule(self) -> Schedule:
        """The learning rate at each step."""
        return parse_schedule(self.learning_rate, disable_lr_steps_reset=self.disable_lr_steps_reset)

    @model_validator(mode="before")
    @classmethod
    def _spread_pairs(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        spread = dict(values)
        for pair, names in cls.pairs.items():
            if spread.get(pair) is None:
                continue
            for name in names:
                if name in spread:
                    raise contradiction(f"'{pair}' already gives '{name}'; keep one of them", pair, name)
            try:
                given = _checker(cls, pair).validate_python(spread[pair])
            except ValidationError:
                continue  # reported by the pair's own field
            spread.update(zip(names, given, strict=True))
        return spread

    @field_validator("optimizer_type", mode="before", check_fields=False)
    @classmethod
    def _canonical_name(cls, value: Any) -> Any:
        name = cls.model_fields["optimizer_type"].default
        return name if isinstance(value, str) and value.lower() == name.lower() else value

    @field_validator("learning_rate")
    @classmethod
    def _can_be_scheduled(cls, value: Any) -> Any:
        try:
            schedule = parse_schedule(value)
        except UserError as error:
            # The text goes in as a value, because braces in a template are placeholders.
            raise PydanticCustomError(
                "schedule", "{message}", {"message": str(error).removeprefix("learning_rate: ")}
            ) from None
        if schedule.is_constant and schedule(0) <= 0:
            raise PydanticCustomError("schedule", "Input should be greater than 0")
        return value

    @field_validator("max_gradient_norm", "max_gradient_value")
    @classmethod
    def _zero_means_never(cls, value: float | None) -> float | None:
        return value or None

    @model_validator(mode="after")
    def _fits_together(self) -> OptimizerParams:
        if self.max_gradient_norm is not None and self.max_gradient_value is not None:
            raise contradiction(
                f"clip either by norm ({self.max_gradient_norm}) or by value ({self.max_gradient_value})",
                "max_gradient_norm",
                "max_gradient_value",
            )
        if self.max_loss_scale is not None and self.max_loss_scale < self.min_loss_scale:
            raise contradiction(
                f"max_loss_scale={self.max_loss_scale} is below min_loss_scale={self.min_loss_scale}",
                "max_loss_scale",
                "min_loss_scale",
            )
        return self


def _checker(section: type[OptimizerParams], pair: str) -> TypeAdapter[tuple[float, float]]:
    annotation: Any = section.model_fields[pair].annotation
    return TypeAdapter(annotation)


class WithMoments(OptimizerParams):
    """Two running means."""

    pairs: ClassVar[Mapping[str, tuple[str, str]]] = {"betas": ("beta1", "beta2")}

    betas: tuple[Decay, Decay] | None = Field(None, exclude=True, description="beta1 and beta2 in one list.")
    beta1: Decay = Field(0.9, description="Decay of the running mean of gradients.")
    beta2: Decay = Field(0.999, description="Decay of the running mean of squared gradients.")


class WithEps(OptimizerParams):
    """A denominator that must not become zero."""

    aliases: ClassVar[Mapping[str, str]] = {**OptimizerParams.aliases, "epsilon": "eps"}

    eps: NotNegative = Field(
        1e-6,
        description="Added to the denominator, against division by zero.",
    )


class WithMaximize(OptimizerParams):
    """Both directions."""

    maximize: bool = Field(False, description="Climb instead of descend.")


class AdadeltaParams(WithEps, WithMaximize):
    """Adadelta."""

    optimizer_type: Literal["Adadelta"] = Field("Adadelta", description="The optimizer.")
    rho: Fraction = Field(0.9, description="Decay of the running mean of squared gradients.")


class AdafactorParams(OptimizerParams):
    """Adafactor: second moments kept as a row and a column of each matrix."""

    pairs: ClassVar[Mapping[str, tuple[str, str]]] = {"eps": ("eps1", "eps2")}

    optimizer_type: Literal["Adafactor"] = Field("Adafactor", description="The optimizer.")
    learning_rate: LearningRate | None = Field(
        None,
        description="A number or schedules, as elsewhere; left out with relative_step, which finds its own.",
    )
    eps: tuple[NotNegative, NotNegative] | None = Field(
        None, exclude=True, description="eps1 and eps2 in one list."
    )
    eps1: NotNegative = Field(1e-30, description="Added to squared gradients.")
    eps2: NotNegative = Field(
        1e-3, description="Lowest size of a parameter that scale_parameter reckons with."
    )
    clip_threshold: Positive = Field(1.0, description="Root mean square over which an update is scaled down.")
    decay_rate: NotPositive = Field(
        -0.8, description="Power of the step that the decay of second moments approaches 1 with."
    )
    beta1: Decay | None = Field(
        None, description="Decay of the running mean of updates; left out: none is kept."
    )
    scale_parameter: bool = Field(
        True, description="Make the step proportional to the parameter's root mean square."
    )
    relative_step: bool = Field(
        False, description="Use 1/sqrt(step), 0.01 at most, in place of a learning rate."
    )
    warmup_init: bool = Field(
        False, description="With relative_step: begin at a millionth a step instead of 0.01."
    )

    @property
    def schedule(self) -> Schedule:
        return parse_schedule(1.0) if self.relative_step else super().schedule

    @field_validator("learning_rate")
    @classmethod
    def _can_be_scheduled(cls, value: Any) -> Any:
        return None if value is None else super()._can_be_scheduled(value)

    @model_validator(mode="after")
    def _has_one_learning_rate(self) -> AdafactorParams:
        if self.relative_step and self.learning_rate is not None:
            raise contradiction(
                "relative_step finds its own learning rate; leave learning_rate out",
                "learning_rate",
                "relative_step",
            )
        if not self.relative_step and self.learning_rate is None:
            raise contradiction("learning_rate is required without relative_step", "learning_rate")
        if self.warmup_init and not self.relative_step:
            raise contradiction("warmup_init works with relative_step only", "warmup_init", "relative_step")
        return self


class AdagradParams(WithEps, WithMaximize):
    """Adagrad."""

    optimizer_type: Literal["Adagrad"] = Field("Adagrad", description="The optimizer.")
    lr_decay: NotNegative = Field(
        0.0, description="The learning rate is divided by 1 + lr_decay * (step - 1)."
    )
    initial_accumulator_value: NotNegative = Field(
        0.0, description="What the sums of squared gradients start from."
    )


class AdamParams(WithMoments, WithEps):
    """Adam, with weight decay as part of the gradient."""

    optimizer_type: Literal["Adam"] = Field("Adam", description="The optimizer.")
    correct_bias: bool = Field(True, description="Make up for moments that start at zero.")
    amsgrad: bool = Field(False, description="Divide by the largest second moment so far.")


class AdamWParams(WithMoments, WithEps):
    """Adam with weight decay beside the gradient."""

    optimizer_type: Literal["AdamW"] = Field("AdamW", description="The optimizer.")
    correct_bias: bool = Field(
        True, description="Make up for moments that start at zero; model zoo 1.6 had false."
    )
    amsgrad: bool = Field(False, description="Divide by the largest second moment so far.")


class AdamaxParams(WithMoments, WithEps, WithMaximize):
    """Adamax: Adam with the infinity norm."""

    optimizer_type: Literal["Adamax"] = Field("Adamax", description="The optimizer.")


class ASGDParams(WithMaximize):
    """Averaged stochastic gradient descent."""

    optimizer_type: Literal["ASGD"] = Field("ASGD", description="The optimizer.")
    lambd: NotNegative = Field(1e-4, description="Decay of the weights, and of the learning rate over steps.")
    alpha: NotNegative = Field(0.75, description="Power of the learning rate's decay.")
    t0: NotNegative = Field(1e6, description="Step at which averaging starts.")


class LambParams(WithMoments, WithEps):
    """LAMB: Adam whose step in each tensor is proportional to the tensor's norm."""

    optimizer_type: Literal["Lamb"] = Field("Lamb", description="The optimizer.")
    correct_bias: bool = Field(False, description="Make up for moments that start at zero.")
    clamp_value: Positive = Field(10.0, description="Largest norm of a tensor that its step grows with.")
    adam: bool = Field(False, description="Leave the norms out, which gives Adam; for comparison.")


class LionParams(WithMoments):
    """Lion: the sign of a momentum."""

    optimizer_type: Literal["Lion"] = Field("Lion", description="The optimizer.")
    beta1: Decay = Field(0.9, description="Weight of the momentum against the gradient in the update.")
    beta2: Decay = Field(0.99, description="Decay of the momentum.")


class MuonParams(WithMoments, WithEps):
    """Muon: momentum made orthogonal in hidden matrices, AdamW in everything else."""

    aliases: ClassVar[Mapping[str, str]] = {
        **WithEps.aliases,
        "nesterov": "use_nesterov",
        "adjust_lr_fn": "adjust_lr",
    }

    optimizer_type: Literal["Muon"] = Field("Muon", description="The optimizer.")
    momentum: Decay = Field(0.95, description="Decay of the running mean of gradients, in matrices.")
    use_nesterov: bool = Field(
        True,
        description="Look ahead along the momentum, in matrices.",
    )
    ns_steps: int = Field(
        5, ge=1, le=100, description="Newton-Schulz iterations that make an update orthogonal."
    )
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        "match_rms_adamw",
        description="Size of a matrix's step: as large as AdamW's, or by the shape alone as first published.",
    )
    adamw_params: list[NamePart] = Field(
        ["embed", "lm_head", "classifier"],
        description="Parts of names of matrices that AdamW takes, beside embeddings: the first and last layers.",
    )
    adamw_lr_scale: Positive = Field(
        1.0, description="Learning rate of the AdamW part, relative to learning_rate."
    )


class NAdamParams(WithMoments, WithEps):
    """Adam with Nesterov momentum."""

    optimizer_type: Literal["NAdam"] = Field("NAdam", description="The optimizer.")
    momentum_decay: NotNegative = Field(4e-3, description="How fast the momentum approaches beta1.")


class RAdamParams(WithMoments, WithEps):
    """Adam that waits until its second moment is reliable."""

    optimizer_type: Literal["RAdam"] = Field("RAdam", description="The optimizer.")


class RMSpropParams(WithEps):
    """RMSprop."""

    optimizer_type: Literal["RMSprop"] = Field("RMSprop", description="The optimizer.")
    alpha: Fraction = Field(0.99, description="Decay of the running mean of squared gradients.")
    momentum: NotNegative = Field(0.0, description="Decay of the momentum; 0: none.")
    centered: bool = Field(
        False, description="Divide by the standard deviation of gradients, not their size."
    )


class RpropParams(OptimizerParams):
    """Rprop: a step size of its own for each weight, from the signs of gradients; for whole batches."""

    pairs: ClassVar[Mapping[str, tuple[str, str]]] = {
        "etas": ("eta1", "eta2"),
        "step_sizes": ("step_size_min", "step_size_max"),
    }

    optimizer_type: Literal["Rprop"] = Field("Rprop", description="The optimizer.")
    etas: tuple[Shrinking, Growing] | None = Field(
        None, exclude=True, description="eta1 and eta2 in one list."
    )
    eta1: Shrinking = Field(0.5, description="Factor on a step size after a change of sign.")
    eta2: Growing = Field(1.2, description="Factor on a step size while the sign stays.")
    step_sizes: tuple[Positive, Positive] | None = Field(
        None, exclude=True, description="step_size_min and step_size_max in one list."
    )
    step_size_min: Positive = Field(1e-6, description="Smallest step size.")
    step_size_max: Positive = Field(50.0, description="Largest step size.")

    @model_validator(mode="after")
    def _can_step(self) -> RpropParams:
        if self.step_size_max < self.step_size_min:
            raise contradiction(
                f"step_size_max={self.step_size_max} is below step_size_min={self.step_size_min}",
                "step_size_max",
                "step_size_min",
            )
        if self.weight_decay_rate:
            raise contradiction(
                f"Rprop has no weight decay, received {self.weight_decay_rate}",
                "weight_decay_rate",
                "optimizer_type",
            )
        return self


class SGDParams(WithMaximize):
    """Stochastic gradient descent."""

    aliases: ClassVar[Mapping[str, str]] = {**OptimizerParams.aliases, "nesterov": "use_nesterov"}

    optimizer_type: Literal["SGD"] = Field("SGD", description="The optimizer.")
    momentum: NotNegative = Field(0.0, description="Decay of the momentum; 0: none.")
    dampening: float = Field(0.0, description="Part of the gradient that is kept out of the momentum.")
    use_nesterov: bool = Field(
        False,
        description="Look ahead along the momentum.",
    )

    @model_validator(mode="after")
    def _can_look_ahead(self) -> SGDParams:
        if self.use_nesterov and (self.momentum == 0 or self.dampening != 0):
            raise contradiction(
                "use_nesterov needs a momentum above 0 and no dampening, received "
                f"momentum={self.momentum} and dampening={self.dampening}",
                "use_nesterov",
                "momentum",
            )
        return self


OPTIMIZERS: dict[str, type[OptimizerParams]] = {
    schema.__name__.removesuffix("Params"): schema
    for schema in (
        AdadeltaParams,
        AdafactorParams,
        AdagradParams,
        AdamParams,
        AdamWParams,
        AdamaxParams,
        ASGDParams,
        LambParams,
        LionParams,
        MuonParams,
        NAdamParams,
        RAdamParams,
        RMSpropParams,
        RpropParams,
        SGDParams,
    )
}


def optimizer_schema(optimizer_type: object = None) -> type[OptimizerParams]:
    """Finds the keys of an optimizer by its name in any case; without a name it is Adam."""
    if optimizer_type is None:
        return OPTIMIZERS[DEFAULT_OPTIMIZER]
    names = {name.lower(): name for name in OPTIMIZERS}
    received = str(optimizer_type)
    if isinstance(optimizer_type, str) and received.lower() in names:
        return OPTIMIZERS[names[received.lower()]]
    near = difflib.get_close_matches(received.lower(), names, n=1, cutoff=0.5)
    raise UserError(
        f"optimizer.optimizer_type is {optimizer_type!r}.",
        suggest(names[near[0]] if near else received, OPTIMIZERS),
    )
