"""One module for each family of commands; the command line loads them on first use."""
