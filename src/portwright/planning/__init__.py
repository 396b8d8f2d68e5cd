"""`portwright plan`: a subject is loaded in its own framework, captured, matched and planned."""
