"""Ridge regression in closed form: normal equations, exact sums, many penalties at once."""
