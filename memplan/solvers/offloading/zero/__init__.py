"""ZeRO-Offload and ZeRO-Infinity: fixed rules, as baselines."""
