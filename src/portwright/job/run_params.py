"""The params of a run as its command line asks for them, and the folder that it runs in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from portwright.discover import find_all_models, find_targets
from portwright.errors import UserError
from portwright.job.arguments import Arguments, script_folder
from portwright.job.params import Params, load_params
from portwright.job.user_schema import schema_of_namespace


def load_run_params(
    arguments: Arguments, default_params_fn: Callable[[dict[str, Any]], Any] | None
) -> Params:
    """Reads the params file of a command line; flags of the user's own stand in runconfig afterwards."""
    params = load_params(
        arguments.params,
        overrides=arguments.overrides,
        default_params_fn=default_params_fn,
        user_schemas=_user_schemas(default_params_fn),
        target_sections=arguments.target.sections,
        known_target_sections=[name for target in find_targets().values() for name in target.sections],
        config=arguments.config,
    )
    params.values["runconfig"].update(arguments.extra)
    return params


def find_model_dir(arguments: Arguments, params: Params) -> Path:
    chosen = arguments.model_dir if arguments.model_dir is not None else params.runconfig.model_dir
    if chosen is None:
        return default_model_dir(script_folder())
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:  # ~somebody who has no home
        raise UserError(
            f"cannot use model_dir '{chosen}': {error}", "Choose another folder with --model_dir."
        ) from error


def default_model_dir(folder: Path) -> Path:
    """model_dir beside the script; NAME_run where one stands for a reference model, whose script is in the package."""
    for name, path in find_all_models().items():
        if path.resolve() == folder.resolve():
            return Path.cwd() / f"{name.replace('/', '_')}_run"
    return folder / "model_dir"


def _user_schemas(default_params_fn: Any) -> Mapping[str, Any]:
    """PARAMS_SCHEMA of the module that set_defaults is in, or of the user's utils.py."""
    for name in (getattr(default_params_fn, "__module__", None), "utils"):
        module = sys.modules.get(name) if name else None
        schema = schema_of_namespace(vars(module), module.__name__) if module is not None else None
        if schema is not None:
            return schema
    return {}
