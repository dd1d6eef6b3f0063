"""What XLA writes to the folder of --xla_dump_to for a small training step, shortened by hand."""

from pathlib import Path

NAME = "module_0008.jit_step.cpu_after_optimizations"
ASSIGNMENT = """BufferAssignment:
allocation 0: size 1000, parameter 0, shape |f32[250]| at ShapeIndex {}:
 value: <10 state_params_w.1 @0> (size=1000,offset=0): f32[250]{0}
allocation 1: size 1000, parameter 1, shape |f32[250]| at ShapeIndex {}, maybe-live-out:
 value: <11 state_opt_state_mu.1 @0> (size=1000,offset=0): f32[250]{0}
 value: <12 add.7 @0> (size=1000,offset=0): f32[250]{0}
allocation 2: size 400, parameter 2, shape |f32[100]| at ShapeIndex {}:
 value: <13 x.1 @0> (size=400,offset=0): f32[100]{0}
allocation 3: size 1000, maybe-live-out:
 value: <14 subtract.2{0} @0> (size=1000,offset=0): f32[250]{0}
allocation 4: size 8, constant:
 value: <15 constant.1 @0> (size=8,offset=0): f64[]
allocation 5: size 3000, preallocated-temp:
 value: <16 h0 @0> (size=1000,offset=0): f32[250]{0}
 value: <17 in_place (phi) @0> (size=1000,offset=0): f32[250]{0}
 value: <18 g1 @0> (size=1000,offset=1000): f32[250]{0}
 value: <19 h1 @0> (size=600,offset=2000): f32[150]{0}
 value: <20 g0 @0> (size=600,offset=2000): f32[150]{0}
"""
RANGES = """HloLiveRange (max 8):
  InstructionSequence:
    0:state_params_w.1
  BufferLiveRange:
    state_params_w.1{}:0-8
    h0{}:2-5
    in_place{}:4-5
    g1{}:4-6
    h1{}:3-5
    g0{}:6-7
    subtract.2{0}:7-8
  Live ranges at 4 (peak):
    h0{}: 1000 bytes (cumulative: 1000 bytes)
"""
REPORT = """Memory Space: default (color=0)
Total bytes: 6408 (6.3KiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
"""
PROGRAM = r"""HloModule jit_step, is_scheduled=true

FileNames
1 "/a/train.py"
2 "/lib/python3/site-packages/flax/core.py"

FunctionNames
1 "<module>"
2 "net"
3 "step"
4 "apply"

FileLocations
1 {file_name_id=1 function_name_id=1 line=20 end_line=20 column=0 end_column=9}
2 {file_name_id=1 function_name_id=2 line=6 end_line=6 column=0 end_column=9}
3 {file_name_id=2 function_name_id=4 line=99 end_line=99 column=0 end_column=9}
4 {file_name_id=1 function_name_id=3 line=13 end_line=13 column=0 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=3 parent_frame_id=2}
4 {file_location_id=4 parent_frame_id=1}

%fused (p: f32[250]) -> f32[250] {
  ROOT %tanh.9 = f32[250] tanh(%p), metadata={op_name="jit(step)/jvp(Net)/Dense_0/tanh" stack_frame_id=3}
}

ENTRY %main.9 (w: f32[250]) -> f32[250] {
  %state_params_w.1 = f32[250]{0} parameter(0), metadata={op_name="state.params[\'w\']"}
  %state_opt_state_mu.1 = f32[250]{0} parameter(1), metadata={op_name="state.opt_state[0].mu[\'w\']"}
  %x.1 = f32[100]{0} parameter(2), metadata={op_name="x"}
  %h0 = f32[250]{0} fusion(%x.1), metadata={op_name="jit(step)/jvp(Net)/Dense_1/dot_general" stack_frame_id=3}
  %h1 = f32[150]{0} dot(%h0), metadata={op_name="jit(step)/jvp(Net)/Dense_1/tanh" stack_frame_id=3}
  %g1 = f32[250]{0} dot(%h1), metadata={op_name="jit(step)/transpose(jvp(Net))/Dense_0/dot" stack_frame_id=3}
  ROOT %subtract.2 = (f32[250]{0}) fusion(%g1), metadata={op_name="jit(step)/sub" stack_frame_id=4}
}
"""


def dump() -> None:
    """Write the files to the working folder."""
    for end, text in (
        ("-buffer-assignment.txt", ASSIGNMENT),
        ("-live-range.txt", RANGES),
        ("-memory-usage-report.txt", REPORT),
        (".txt", PROGRAM),
    ):
        Path(f"{NAME}{end}").write_text(text)
