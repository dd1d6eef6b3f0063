"""A second, naive way to run a traced program: nothing is deleted, nothing generated. Also measures."""

from __future__ import annotations

from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.measuring.synthetic_inputs import substitute
from memplan.program.graph import Cost
from memplan.program.program import refs
from memplan.torch_support.below_autograd import as_traced
from memplan.tracing.joint import residents


class ProgramReplay:
    """tensors: per value the tensor. workspaces: per operation, bytes beside inputs and outputs."""

    def __init__(self, program, iteration):
        self.program = program
        self.tensors = dict(program.constants)
        self.workspaces = []
        named = (program.parameters, program.buffers, program.inputs)
        for values, tensors in zip(named, residents(iteration), strict=True):
            self.tensors.update({values[name]: tensor.detach() for name, tensor in tensors.items()})

    def run(self):
        with as_traced(self.program.device):
            for operation in self.program.operations:
                peak = live_peak(lambda call=operation.call: self.call(call))
                self.workspaces.append(max(0, peak.peak_bytes - peak.left_bytes))
            self.need(self.program.loss)
            for value in self.program.gradients.values():
                self.need(value)
        return self

    def costs(self):
        return [Cost(1.0, workspace) for workspace in self.workspaces]

    def need(self, value):
        if value not in self.tensors:
            self.call(self.program.views[value])
        return self.tensors[value]

    def call(self, call):
        read = {value: self.need(value) for value in refs((call.arguments, call.keywords))}
        made = call.target(*substitute(call.arguments, read), **substitute(call.keywords, read))
        for output, tensor in zip(call.outputs, made if call.several else (made,), strict=True):
            if output is not None:
                self.tensors[output] = tensor
