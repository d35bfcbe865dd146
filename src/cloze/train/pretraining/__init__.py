"""Pre-training: masked language modelling with NSP, SOP or no sentence objective."""
