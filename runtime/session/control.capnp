# What session and workers say to each other. Tensors never travel here.
@0x9d7c0b1e52a3f846;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::runtime::wire");

struct Report { kind @4 :UInt8; name @0 :Text; step @1 :Int64; microbatch @2 :Int32; values @3 :List(Float64); bytes @5 :Data; program @6 :Int32; }
struct Span {
  row @0 :Text; name @1 :Text; beginNs @2 :Int64; endNs @3 :Int64; step @4 :Int64; microbatch @5 :Int32;
  flowIn @6 :UInt64; flowOut @7 :UInt64;
}
struct Throttle { a @0 :Int32; b @1 :Int32; latencyNs @2 :Int64; bytesPerSecond @3 :Int64; }
struct Gradients { squareSums @0 :List(Float64); peaks @1 :List(Float32); bad @2 :List(BadTerm); }
struct BadTerm { peak @0 :Int32; microbatch @1 :Int32; }
struct Commit { gradScale @0 :Float64; lr @1 :Float64; update @2 :Int64; voidStep @3 :Bool; }
struct Address { rank @0 :Int32; blob @1 :Data; }

struct ToWorker {
  union {
    plan @0 :Data;
    hello :group {
      rank @1 :Int32; saveJob @3 :UInt64; threads @4 :Int32;
      tls @5 :Text; netDevice @6 :Text; traceFirst @7 :Int64; paced @8 :Float64; runKernels @9 :Bool;
      traceSteps @25 :Int64; cores @26 :List(Int32); throttle @27 :List(Throttle);
      saveDir @28 :Text; logLevel @30 :UInt8; beatMs @35 :Int32; neighbours @44 :Int32; injections @36 :List(Text); place @37 :Int32; memory @38 :Text; device @51 :Text;
    }
    connect :group {
      addresses @10 :List(Address); adopt @32 :Int64; restore @31 :Text; homePlan @39 :Data; homes @40 :List(Text); homeOwn @41 :List(Int32);
      areaMachines @42 :List(Int32); machines @43 :List(Int32); keepers @45 :List(Int32); guardMachines @46 :List(Int32);
      guardEvery @47 :Int64; guardWindow @48 :Int64; guardOf @49 :List(Int32);
    }
    begin :group { step @11 :Int64; readers @12 :UInt32; exponents @2 :List(Int32); wanted @50 :List(Int32); }
    go :group { program @13 :Int32; step @14 :Int64; }
    commit :group {
      step @15 :Int64; readers @16 :UInt32; commits @17 :List(Commit); exponents @29 :List(Int32);
    }
    feed :group { name @18 :Text; program @19 :Int32; step @20 :Int64; microbatch @21 :Int32; payload @22 :Data; }
    explain @23 :Void;
    stop @24 :Void;
    abort @33 :Void;
    enter @34 :Void;
  }
}

struct FromWorker {
  union {
    address @0 :Data;
    ready :group { restoredBytes @1 :Int64; restoreS @20 :Float64; healedBytes @33 :Int64; }
    closed :group { program @2 :Int32; step @3 :Int64; reports @4 :List(Report); busyNs @5 :Int64; gradients @25 :Gradients; }
    report :group { program @6 :Int32; report @7 :Report; }
    taken :group { name @21 :Text; program @22 :Int32; step @23 :Int64; microbatch @24 :Int32; }
    failed :group { actor @8 :Text; code @9 :UInt8; message @10 :Text; }
    explanation @11 :Text;
    spans :group { spans @12 :List(Span); dropped @17 :Int64; }
    progress :group { acts @16 :Int64; busy @29 :Bool; stuck @30 :Text; stuckMs @31 :Int64; unheard @28 :List(Int32); }
    stopped :group { peakBytes @13 :Int64; sentBytes @14 :UInt64; receivedBytes @15 :UInt64; fileBytes @18 :Int64; sharedBytes @19 :Int64; missed @32 :List(Text); }
    quiesced :group { holdsAny @26 :Bool; versions @27 :List(Int64); }
  }
}
