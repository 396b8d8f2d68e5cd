"""One process of many: reads which files to check from stdin, and writes what it found to stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from portwright.discover import find_rules
from portwright.port.check import Selection
from portwright.port.many import check_here, to_row


def main() -> None:
    task = json.load(sys.stdin)
    rules = find_rules()
    selection = Selection(tuple(rules[code] for code in task["codes"]), frozenset(task["targets"]))
    files, members = ([Path(path) for path in task[name]] for name in ("files", "members"))
    checked = check_here(Path(task["root"]), files, members, selection)
    json.dump([to_row(each) for each in checked], sys.stdout)


if __name__ == "__main__":
    main()
