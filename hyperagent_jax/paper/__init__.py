"""The paper's figures and tables: which rows each needs, what is there, how it is drawn, and what came out.

`figure` finds the rows of a figure in the folders of results by their settings, `deep_sea`, `atari` and `tabular`
list the figures, `findings` computes sentences from rows, `page` writes docs/paper.md, and `main` is the command.
"""
