"""What other systems do with the matrix's input, each written as its own documentation says."""
