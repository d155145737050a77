"""Complete plug-ins, one file each."""
