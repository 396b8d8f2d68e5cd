"""The page about sites; its tables come from the files and from the types that read them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from portwright.launch.site import CHANGES_BY_TARGET, Site
from portwright.launch.site_files import SHIPPED, load_site
from portwright.launch.site_pages import example_toml

_TEXT = """# Sites

A site is a place that jobs are sent to: one TOML file that says which scheduler it has, what a job asks for, what its steps run in
and which paths its nodes see. `portwright submit mymodel --site neocortex` takes everything from it that the command line leaves out.

```text
portwright sites                    the list, and which can be used from this machine
portwright sites neocortex          everything about one
portwright sites neocortex --toml   its file, to begin one of your own from it
portwright sites ./mine.toml        whether a file is right, before it is put in place
```

## A site of your own

Put a TOML file into `~/.config/portwright/sites/` (`$XDG_CONFIG_HOME/portwright/sites/`), or into a folder that the variable
`PORTWRIGHT_SITES` names. The file's name is the site's: `my-neocortex.toml` is `--site my-neocortex`. `--site` takes a path too.
"""

_RULES = """
- `extends` names the site that the file begins from, or a path relative to the file. Tables are merged key by key; a list takes the place
  of the whole list. TOML has no null: an empty string takes an inherited value away (`partition = ""`).
- A file with the name of a shipped site takes its place, and `portwright sites` says so. It may extend the one that it hides:
  `extends = "neocortex"` in your own neocortex.toml. `PORTWRIGHT_SITES` comes before the config folder.
- What holds for one target only stands in `[on.TARGET.TABLE]`; of a site with GPUs, `[on.CPU.job]` with `gres = ""` asks for none. Tables and
  keys that a target may change: {changes}.
- What stands in `[on.GPU.job]` goes before `[job]`, of the site that is extended too. So shipped sites have what their own target needs in
  the plain tables, and only exceptions in `[on]`.
- Nothing is guessed: an unknown key, a value that SLURM would refuse, or keys that contradict each other are errors with file, line, key and
  the value received. A file that is wrong is listed with its error, and leaves the other sites alone.
- Times are SLURM's: `90` and `90:00` are minutes, `4:00:00` is hours, `2-12` and `2-12:00:00` begin with days. `4:00` is four minutes.
- `variables` are written into the job's script, which others may read: a name that looks like a secret is refused there. Name it in
  `passed`, and set it in the shell that submits.

## Sites that come with Portwright

Facts are from the sites' own documentation, which changes: what a site says about itself goes before what stands here, and a file of
your own corrects it at once.

"""


def sites_page(head: str) -> str:
    example = example_toml(load_site(SHIPPED / "neocortex.toml"))
    rules = _RULES.replace("{changes}", ", ".join(f"`{name}`" for name in CHANGES_BY_TARGET))
    lines = [
        *_shipped(),
        "\n## Every key\n\nThese stand at the top of the file, before the first table.\n",
        "| key | default | meaning |\n| --- | --- | --- |",
        "| `extends` | none | The site that this file begins from. |",
        *_keys(Site),
    ]
    for name, table in _tables():
        lines += [f"\n### [{name}]\n\n{(table.__doc__ or '').strip().splitlines()[0]}\n"]
        lines += ["| key | default | meaning |\n| --- | --- | --- |", *_keys(table)]
    return f"{head}{_TEXT}\n```toml\n{example}```\n{rules}" + "\n".join(lines) + "\n"


def _shipped() -> Iterator[str]:
    yield "| site | scheduler | targets | tasks | what it is | facts from |\n| --- | --- | --- | --- | --- | --- |"
    for path in sorted(SHIPPED.glob("*.toml")):
        site = load_site(path)
        only = {name: f"{name} (compile only)" for name in site.compile_only}
        targets = ", ".join(only.get(name, name) for name in site.targets)
        yield f"| `{site.name}` | {site.scheduler} | {targets} | {site.tasks} | {site.summary} | {site.source} |"


def _tables() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in Site.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


def _keys(model: type[BaseModel]) -> Iterator[str]:
    tables = {name for name, _ in _tables()}
    for name, field in model.model_fields.items():
        if model is Site and name in tables:
            continue
        default = "required" if field.is_required() else _plain(field.get_default(call_default_factory=True))
        if model is Site and name == "name":
            default = "the file's"
        yield f"| `{name}` | {default} | {field.description or ''} |"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "none" if value is None or value in ("", (), {}) else f"`{value}`"
