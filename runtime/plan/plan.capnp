# The plan on the wire and on disk: roles once; each worker that reads it substitutes its rank. See runtime/plan/plan.h
# for the meaning of every field: names are the same, in camel case (opStateBytes: op_state_bytes); the order is that in
# which fields were added. Pair stands for PlanReader, PlanParamRef::Use, PlanExchange::Pair; Program for a name and
# its ProgramSpec; Plan.pipeline and Plan.chunks for Pipeline.
@0xb3f1c2a94d5e6f70;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::runtime::wire");

struct Attr {
  key @0 :Text;
  union {
    integer @1 :Int64;
    real @2 :Float64;
    text @3 :Text;
    list @4 :List(Int64);
  }
}
struct Sbp { kind @0 :UInt8; dim @1 :Int32; unit @2 :Int64; }
struct Axis { name @0 :Text; size @1 :Int64; }
struct Mesh { axes @0 :List(Axis); ranks @1 :List(Int32); }
struct Tensor {
  name @0 :Text; dtype @1 :UInt8; shape @2 :List(Int64); mesh @3 :Int32; sbp @4 :List(Sbp);
  rate @5 :UInt8; gradientOf @6 :Int32 = -1;
}
struct Pair { a @0 :Int32; b @1 :Int32; }
struct Channel {
  kind @0 :UInt8; name @1 :Text; writer @2 :Int32; writerPort @3 :Int32; readers @4 :List(Pair);
  tensors @5 :List(Int32); offsets @6 :List(Int64); bytes @7 :Int64; slots @8 :Int32; rate @9 :UInt8; initial @10 :Bool;
  after @11 :Text; program @12 :Int32; ring @13 :Int32 = -1; buffer @14 :Int32; bufferOffset @15 :Int64;
  atOnce @16 :Int64 = 1; area @17 :Int32 = -1; shift @18 :Int32; lag @19 :Int32;
}
struct Operand { where @0 :UInt8; port @1 :Int32; index @2 :Int32; offset @3 :Int64; tensor @4 :Int32; }
struct Op {
  op @0 :Text; name @1 :Text; attrs @2 :List(Attr); in @3 :List(Operand); out @4 :List(Operand); stateOffset @5 :Int64;
  stateBytes @6 :Int64;
}
struct ParamRef { param @0 :Int32; index @1 :Int32; grads @2 :List(Pair); }
struct Actor {
  kind @0 :UInt8; name @1 :Text; program @2 :Int32; rate @3 :UInt8; stream @4 :Text; priority @5 :Int32;
  run @6 :UInt32; pass @7 :UInt8; in @8 :List(Int32); out @9 :List(Int32); ops @10 :List(Op);
  exchange @11 :Int32; params @12 :List(ParamRef); costS @13 :Float64; scratchBytes @14 :Int64;
  opScratchOffset @15 :Int64; closesStep @16 :Bool; virtualStage @17 :Int32; takesTurns @18 :Bool;
  opStateBytes @19 :Int64;
  stagingRing @20 :Int32 = -1; stagingBuffer @21 :Int32; stagingArea @22 :Int32 = -1; stagingShift @23 :Int32;
}
struct Exchange {
  name @0 :Text; program @1 :Int32; rate @2 :UInt8; moves @3 :List(Pair); collective @4 :UInt8; bytes @5 :Int64;
  seconds @6 :Float64; latencyS @7 :Float64;
}
struct Role { stage @0 :Int32; actors @1 :List(Actor); channels @2 :List(Channel); units @3 :List(Text); }
struct Param {
  name @0 :Text; tensor @1 :Int32; init @2 :UInt8; initValue @3 :Float32; decay @4 :Bool; terms @5 :Int64 = 1; share @6 :Int32 = -1;
  storedAsShare @7 :Bool; program @8 :Int32 = -1; byOps @9 :Bool; kept @10 :Bool;
}
struct Program { name @0 :Text; microbatches @1 :Int64; samples @2 :Int64; sequential @3 :Bool; stateful @4 :Bool; steps @5 :Bool; optimizer @6 :AdamW; blocks @7 :Int64 = 1; }
struct AdamW { lr @0 :Float32; beta1 @1 :Float32; beta2 @2 :Float32; eps @3 :Float32; weightDecay @4 :Float32; }
struct Link { latencyS @0 :Float64; bytesPerS @1 :Float64; linkBytesPerS @2 :Float64; rendezvousS @3 :Float64; }
struct OddLink { a @0 :Int32; b @1 :Int32; cost @2 :Link; }
struct KernelTime { flops @0 :Float64; bytes @1 :Float64; seconds @2 :Float64; }
struct Kernel { op @0 :Text; times @1 :List(KernelTime); }
struct Costs {
  flopsPerS @0 :Float64; memoryBytesPerS @1 :Float64; launchS @2 :Float64; intraNode @3 :Link; interNode @4 :Link;
  placesPerNode @5 :Int32; oddLinks @6 :List(OddLink); kernels @7 :List(Kernel);
  diskBytesPerS @8 :Float64; handoverS @9 :Float64; nodes @10 :List(Int32);
}
struct Plan {
  version @0 :UInt32;
  programs @1 :List(Program);
  owners @2 :List(List(Int32));
  seed @3 :UInt64;
  meshes @4 :List(Mesh);
  stages @5 :Int32;
  roles @6 :List(Role);
  tensors @7 :List(Tensor);
  exchanges @8 :List(Exchange);
  params @9 :List(Param);
  costs @10 :Costs;
  pipeline @11 :UInt8;
  chunks @12 :Int32 = 1;
  ahead @13 :Int32;
  weightsApart @14 :Bool;
}
