"""Turns results into tables, pictures and pages, with one package per kind of run; does not import jax."""
