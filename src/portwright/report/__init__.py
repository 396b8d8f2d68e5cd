"""Makes HTML pages, with one set of templates, one style sheet and one module for drawings."""
