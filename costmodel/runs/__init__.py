"""Tables of runs: a row of cells read as a complete question, and priced."""
