"""Networks: torsos, heads and the epistemic networks made of them."""
