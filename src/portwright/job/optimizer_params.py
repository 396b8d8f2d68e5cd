"""The keys of the `optimizer` section of params.yaml that optimizers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from portwright.errors import UserError
from portwright.job.schedules import Schedule, parse_schedule
from portwright.job.section import Section, contradiction

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
                continue  # the pair's own field will say so
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
