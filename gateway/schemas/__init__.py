"""What clients send, as tables that one reader checks."""
