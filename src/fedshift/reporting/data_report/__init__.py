"""What a data set contains, who has it and what is odd about it, before anything is trained on it."""
