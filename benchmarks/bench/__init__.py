"""``flashevolve bench``: rivals at equal slots and equal metric calls, measured in the same way."""
