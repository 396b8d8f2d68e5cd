"""Text without a download: the topics of Python's own manual, which come with every Python."""

from __future__ import annotations

import re
from pathlib import Path

from portwright.errors import UserError

Document = list[str]  # its sentences

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"*])")
_HAS_WORD = re.compile(r"[A-Za-z]{2}")


def python_documentation() -> list[Document]:
    """About 100,000 words in some 80 documents; the text is that of the running Python."""
    from pydoc_data import topics

    documents = [split_sentences(text) for _, text in sorted(topics.topics.items())]
    return [document for document in documents if document]


def read_text_files(folders: list[str]) -> list[Document]:
    """The *.txt files of folders in UTF-8, a sentence or paragraph a line, documents apart by an empty line."""
    documents: list[Document] = []
    files = [path for folder in folders for path in sorted(Path(folder).glob("*.txt"))]
    if not files:
        raise UserError(
            f"data_dir {', '.join(repr(folder) for folder in folders)} has neither *.tfrecord* nor *.txt files.",
            "Name a folder that has some, or leave data_dir out to use Python's documentation.",
        )
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not UTF-8 (byte {error.start}).", "Convert it, for instance with iconv."
            ) from error
        for block in re.split(r"\n\s*\n", text):
            sentences = [line.strip() for line in block.splitlines() if line.strip()]
            if sentences:
                documents.append(sentences)
    if not documents:
        raise UserError(f"The *.txt files in {', '.join(folders)} have no text.", "Give files with text.")
    return documents


def split_sentences(text: str) -> Document:
    """Sentences of running text; underlines and other lines without a word are left out."""
    lines = [line for line in text.splitlines() if not line.strip() or _HAS_WORD.search(line)]
    sentences = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        sentences += [
            " ".join(part.split()) for part in _SENTENCE_END.split(paragraph) if _HAS_WORD.search(part)
        ]
    return sentences
