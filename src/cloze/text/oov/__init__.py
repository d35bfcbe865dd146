"""Out-of-vocabulary words: the ladder of five fallbacks, coverage reports and vocabulary extension."""
