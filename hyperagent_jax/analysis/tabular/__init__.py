"""Plots of the tabular studies of run_tabular.py."""
