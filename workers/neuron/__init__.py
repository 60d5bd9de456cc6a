"""The Neuron worker's parts that need no Neuron package."""
