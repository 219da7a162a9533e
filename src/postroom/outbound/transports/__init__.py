"""Ways by which mail leaves: each takes one attempt's message and recipients and says what became of them."""
