"""The torture campaign: what the product promises to survive, tried at full length.

``make torture`` runs it and prints what was tested, what was to be reached and what was found. A short form of each
test runs with the others, through the same functions (``tests/test_torture.py``).
"""
