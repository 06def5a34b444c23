"""What measurements say, as one report: a page that needs nothing but itself, JSON, or a summary. Pure."""
