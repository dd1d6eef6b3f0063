"""Machines by name: those that papers measured, and GPUs by their data sheets.

Public modules: gpus, network_request, networks, nodes, presets.
"""
