"""Storage: `base` is what handlers and coordinators know of it; each engine is a package beside it."""
