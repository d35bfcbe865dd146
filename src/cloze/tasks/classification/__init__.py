"""Classification and regression of texts: one label, several labels, or a number per text or pair of texts."""
