"""What the Gaudi engine is made of. Nothing here imports `habana_frameworks` or optimum-habana: `workers/engines/gaudi.py` does."""
