"""Single operators as a GPU runs them: which kernel it takes, for which dtypes, and in what layout its result is."""
