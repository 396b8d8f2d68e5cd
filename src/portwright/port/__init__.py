"""The first flow: find what blocks a target in source code, and rewrite it. Nothing here imports torch."""

from portwright.callable_package import make_callable

make_callable(__name__)
