"""The CPU's optimizer step in C, compiled at first use: what a processor can do is known only on the machine itself."""
