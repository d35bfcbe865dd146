"""The torture campaign: full-length tests of the robustness guarantees of the product.

``make torture`` runs it and prints what was tested, the required result and the measured one. A short version of each
test runs with the unit tests, through the same functions (``tests/test_torture.py``).
"""
