"""The method of the paper: slots, grouped evaluation, losses, generators, and GeneralizeFormer, which joins them."""
