"""Rows <-> labels: what a fine-tuning task reads and how it is scored, one file a kind; no torch here.

lines (bytes -> numbered lines) -> tables (lines -> cells) -> rows (cells -> text, pair, label) -> classify
(labels -> targets) -> task (all of it by name), with glue (the published tasks) and metrics (targets, predictions ->
figures) beside.
"""
