"""Networks.

- torsos: feature networks, and adapters for other frameworks.
- heads: output layers, including the last-layer hypermodel.
- priors: fixed priors.
- epistemic: the interface of a network with an index, and networks that are linear in it.
- epinet, hypermodel: networks that are not linear in their index.
"""
