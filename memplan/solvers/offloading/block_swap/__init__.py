"""Block swap: frozen blocks on the host, fetched ahead, forward and back."""
