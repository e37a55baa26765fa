"""The paper's figures and tables: the rows that each needs, which of them exist, how it is drawn, and the result.

`figure` finds the rows of a figure in the folders of results by their settings, `deep_sea`, `atari` and `tabular`
list the figures, `findings` computes sentences from rows, `page` writes docs/paper.md, and `main` is the command.
"""
