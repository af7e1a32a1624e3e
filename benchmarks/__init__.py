"""What things cost, beside what they are compared with: `python -m benchmarks NAME`."""
