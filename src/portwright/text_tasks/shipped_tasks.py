"""Small tasks on the package's own text; the text's markup gives the labels.

The markup that gives a label is removed, so that a model must find it from the words. Pre-training and these tasks
hold out the same documents for evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from portwright.text.shipped import shipped_documents, split_held_out

KINDS = ("prose", "code", "table")
CODE_TAGS = ("O", "B-CODE", "I-CODE")

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")
_RULE_LINE = re.compile(
    r"^# (?P<code>PW\d+) (?P<name>[\w-]+)$.*?^Targets: (?P<targets>[^.\n]+)\. Safety: (?P<safety>[^.\n]+)\. Group: (?P<group>[^.\n]+)\.",
    re.DOTALL | re.MULTILINE,
)
_AFTER_ANSWERS = 300  # letters of a page to keep after the answers
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)


class Question(NamedTuple):
    question: str
    context: str
    answer: str
    answer_start: int


def documents(training: bool) -> list[str]:
    return split_held_out(shipped_documents(), training=training)


@cache
def lines_by_kind(training: bool) -> list[tuple[str, int]]:
    """Lines, each with its kind (prose, code block or table); the markup of the kind is removed."""
    samples: list[tuple[str, int]] = []
    for document in documents(training):
        for kind, line in _lines(document):
            text = " ".join(line.replace("|", " ").replace("`", "").replace("**", "").split())
            if len(text.split()) > 3:
                samples.append((text, KINDS.index(kind)))
    return samples


def _lines(document: str) -> Iterator[tuple[str, str]]:
    in_code = False
    for line in _COMMENT.sub("", document).split("\n"):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif in_code:
            yield "code", line
        elif line.startswith("|"):
            if set(line) - set("|- :"):
                yield "table", line
        elif line.strip() and not line.startswith("#"):
            yield "prose", _LINK.sub(r"\1", line.lstrip("-* "))


@cache
def words_in_code(training: bool) -> list[tuple[list[str], list[int]]]:
    """Words of prose, tagged by CODE_TAGS as code where backticks enclosed them; the backticks are removed."""
    samples: list[tuple[list[str], list[int]]] = []
    for document in documents(training):
        for kind, line in _lines(document):
            if kind != "prose" or line.count("`") % 2:  # a code span that continues in the next line
                continue
            words: list[str] = []
            tags: list[int] = []
            for number, piece in enumerate(line.replace("**", "").split("`")):
                found = piece.split()
                words += found
                tags += (
                    [0] * len(found) if number % 2 == 0 else [1 if i == 0 else 2 for i in range(len(found))]
                )
            if any(tags):
                samples.append((words, tags))
    return samples


@cache
def questions_on_rules(training: bool) -> list[Question]:
    """Questions on the pages of rules; each answer is some words of the page."""
    samples: list[Question] = []
    for document in documents(training):
        text = _COMMENT.sub("", document)
        match = _RULE_LINE.search(text)
        if match is None:
            continue
        code, name = match["code"], match["name"]
        asked = {
            f"What is the name of rule {code}?": "name",
            f"Which rule is {name}?": "code",
            f"Which targets does {name} concern?": "targets",
            f"Is the edit of {code} safe?": "safety",
            f"Which group does {name} belong to?": "group",
        }
        for question, part in asked.items():
            samples.append(
                Question(question, text[: match.end() + _AFTER_ANSWERS], match[part], match.start(part))
            )
    return samples


@cache
def opening_sentences(training: bool) -> list[tuple[list[str], list[int]]]:
    """The sentences of each section, and 1 for those that open a paragraph; the paragraph breaks are removed."""
    samples: list[tuple[list[str], list[int]]] = []
    for document in documents(training):
        sentences: list[str] = []
        labels: list[int] = []
        for paragraph in re.split(r"\n\s*\n", _COMMENT.sub("", document)):
            lines = [line for kind, line in _lines(paragraph) if kind == "prose"]
            if not lines or "```" in paragraph:
                continue
            found = [part for part in _SENTENCE_END.split(" ".join(lines)) if len(part.split()) > 2]
            sentences += found
            labels += [1] + [0] * (len(found) - 1) if found else []
        if len(sentences) > 1 and sum(labels) < len(sentences):
            samples.append((sentences, labels))
    return samples
