from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import imported_tops


class TextLibrary(Rule):
    """Finds uses of torchtext and spacy.

    ## Why
    Both tokenise while training runs, on hosts that have to feed an accelerator, and the site's software seldom has
    them; torchtext is not developed any more.

    ## Example
    ```python
    import torchtext
    ```

    ## Instead
    ```python
    import numpy as np
    ```

    ## Safety
    Manual: the tokenised data has to be made.
    """

    code = "PW107"
    needs = ("own_sources",)
    words = ("torchtext", "spacy")
    cure = "Tokenise once, beforehand, and write arrays of numbers of a fixed length that the loader reads."

    def find(self, file: File) -> Findings:
        seen: set[str] = set()
        for node in file.tree.all(ast.Import, ast.ImportFrom):
            for library in sorted(set(imported_tops(node)) & {"torchtext", "spacy"} - seen):
                seen.add(library)
                message = f"{library} is not on accelerator systems, and tokenises while training runs"
                yield self.report(file, node, message)
