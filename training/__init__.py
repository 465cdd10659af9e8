"""A lean trainer: a store in, a checkpoint out, maps of new imagery from it."""
