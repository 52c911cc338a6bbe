"""Runs: a folder of plain files for each, how it is carried out, and how it is read."""
