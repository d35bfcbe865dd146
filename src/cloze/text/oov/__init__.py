"""Out-of-vocabulary words: the five-rung ladder, coverage reports and vocabulary extension."""
