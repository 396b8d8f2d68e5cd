"""One file a rule: its name is the rule's, `RULE` is the rule, and its class's docstring is its page."""
