"""The example as a package."""
