"""One file a rule: the file has the rule's name, and the one class in it that has a `code` is the rule; its docstring is its page."""
