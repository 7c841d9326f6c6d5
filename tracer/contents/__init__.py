"""What is known of the contents of tensors on the fake device, and what is assumed of the rest."""
