"""Samples: quantized codes or numbers, their hashes and exact sums, read in blocks of rows."""
