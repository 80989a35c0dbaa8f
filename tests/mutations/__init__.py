"""One-line mutations of the library, each of which a named law must catch: evidence that the laws can fail."""
