"""Is this the whole, undamaged checkpoint that its config describes? From headers, from every value, against hashes, and on live ranks."""
