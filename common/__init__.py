"""What gateways and workers share: messages, keys, scripts and pure rules. Knows neither HTTP nor torch."""
