# The manifest on disk, and a place's part of it on its way to the process that commits. See checkpoint/manifest.h for
# the meaning of every field; names and order are the same. FORMAT.md says what may change in version 1.
@0xd2a7f94c1b6e8305;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::checkpoint::wire");

enum Kind { parameter @0; firstMoment @1; secondMoment @2; }
enum Type { f32 @0; f64 @1; bf16 @2; f16 @3; i32 @4; i64 @5; u8 @6; }

struct Sum { low @0 :UInt64; high @1 :UInt64; }
struct Range { lo @0 :Int64; hi @1 :Int64; }
struct StoredExtent { dims @0 :List(Range); file @1 :Int32; offset @2 :Int64; blocks @3 :List(Sum); }
struct StoredTensor {
  parameter @0 :Text; kind @1 :Kind; dtype @2 :Type; shape @3 :List(Int64); extents @4 :List(StoredExtent);
}
struct StoredFile { name @0 :Text; bytes @1 :Int64; dataOffset @2 :Int64; header @3 :Sum; }

struct SumExponent { parameter @0 :Text; exponent @1 :Int32; peak @2 :Float32; }

struct ProgramUpdates { program @0 :Text; updates @1 :Int64; voidSteps @2 :Int32; }

struct Manifest {
  job @0 :UInt64; generation @1 :UInt32; step @2 :Int64; seed @3 :UInt64; lanesGone @4 :Int32; config @5 :Text;
  files @6 :List(StoredFile); tensors @7 :List(StoredTensor); updates @8 :Int64 = -1; exponents @9 :List(SumExponent); voidSteps @10 :Int32;
  programs @11 :List(ProgramUpdates);
}
struct ShardRecord { file @0 :StoredFile; tensors @1 :List(StoredTensor); }
