"""Networks: an encoder x -> z for any method, and the linear head that every method shares."""
