"""sambaflow.samba.argconf.args: the arguments of compile and run as the model zoo's configuration classes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class CommonArgs(BaseModel):
    """What compile and run share."""

    model_config = ConfigDict(extra="forbid")
    arch: str = "native"
    num_tiles: int | None = None
    inference: bool = False


class CompileArgs(CommonArgs):
    pef_name: str | None = None
    output_folder: str = "out"
    graphamp_preset: str | None = None


class RunArgs(CommonArgs):
    pef: str = ""
