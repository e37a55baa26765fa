"""Networks.

- torsos: feature networks, and what else serves as one.
- heads: output layers, the last-layer hypermodel among them.
- priors: fixed priors.
- epistemic: the interface of a network with an index, and networks that are linear in it.
- epinet, hypermodel: networks that are not linear in their index.
"""
