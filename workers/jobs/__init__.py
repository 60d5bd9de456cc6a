"""What the arq worker does: models are fetched and converted once, into the folder that all workers share."""
