"""`portwright sites`: parse and call; the work is done in portwright.launch."""

from __future__ import annotations

import json
import shutil
from typing import Annotated

import typer

from portwright.errors import UserError


def complete_sites(incomplete: str) -> list[str]:
    from portwright.launch.site_files import complete_sites

    return complete_sites(incomplete)


def sites(
    name: Annotated[
        str | None,
        typer.Argument(help="A site's name, or a TOML file.", autocompletion=complete_sites),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print the site's file, to begin one of your own from it.")
    ] = False,
    path: Annotated[
        bool,
        typer.Option(
            "--path",
            help="Print where the site's file is; without a name, the folders looked in, the first first.",
        ),
    ] = False,
) -> None:
    """List the sites that jobs can be submitted to, or tell all about one.

    Sites of your own are TOML files in ~/.config/portwright/sites, or in the folder that PORTWRIGHT_SITES names; one with the
    name of a shipped site takes its place, and `extends = "neocortex"` begins from another.

    portwright sites neocortex

    portwright sites neocortex --toml > ~/.config/portwright/sites/mine.toml
    """
    from portwright.launch import site_files, site_pages

    if sum((as_json, as_toml, path)) > 1:
        raise UserError("--json, --toml and --path are three answers.", "Give one of them.")
    if name is None:
        if as_toml:
            raise UserError(
                "--toml prints one site's file, and no site was named.", "portwright sites NAME --toml"
            )
        if path:
            print("\n".join(str(folder) for folder in site_files.site_folders()))
            return
        rows = site_pages.describe_sites()
        width = shutil.get_terminal_size((110, 24)).columns
        print(
            json.dumps({"sites": rows}, indent=2)
            if as_json
            else "\n".join(site_pages.render_list(rows, width))
        )
        return
    if path or as_toml:
        file = site_files.find_site(name)
        print(str(file.path) if path else site_files.read_text(file.path), end="\n" if path else "")
        return
    site, row = site_pages.describe_site(name)
    if as_json:
        print(json.dumps({**row, "site": site.model_dump(mode="json")}, indent=2))
        return
    print("\n".join(site_pages.render_site(site, row)))
