"""Tables, curves and reports, made from records only."""
