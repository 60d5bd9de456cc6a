"""The HTTP front: validate, tokenize, submit, relay. Never imports torch or `workers`."""
