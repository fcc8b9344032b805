"""One folder per host. Each registers through the entry-point group ``flashevolve_plugins`` like a third party."""
