# What a job and the agents of its machines say to each other. What a place says and hears travels as it is, in bytes.
@0xb2f4d1c06a7e9358;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::runtime::wire");

struct Generation { job @0 :UInt64; number @1 :UInt32; }
struct PlaceHello { place @0 :Int32; hello @1 :Data; }
struct KeptPlace { place @0 :Int32; holdsAny @1 :Bool; left @2 :List(Int64); rank @3 :Int32; }
struct KeptState { version @0 :Int64; state @1 :Data; }
struct Scale { name @0 :Text; exponent @1 :Int32; peak @2 :Float32; }
struct ProgramUpdates { program @0 :Text; updates @1 :Int64; voidSteps @2 :Int32; }
struct Sums { updates @0 :Int64; voidSteps @1 :Int32; scales @2 :List(Scale); programs @3 :List(ProgramUpdates); }
struct Error { code @0 :UInt8; message @1 :Text; }

struct ToAgent {
  union {
    welcome :group { budgetMs @0 :Int32; keeps @22 :List(Int32); }
    refused :group { why @1 :Text; forNow @21 :Bool; }
    start :group { place @2 :Int32; prefix @3 :List(Text); keepsMemory @4 :Bool; }
    tellPlan :group { of @5 :Generation; plan @6 :Data; hellos @7 :List(PlaceHello); renewsMemory @8 :Bool; run @26 :Text; widths @27 :List(Int32); forgetsMemory @28 :Bool; }
    restart :group { of @9 :Generation; place @10 :Int32; afresh @11 :Bool; }
    toPlaces :group { of @12 :Generation; places @13 :List(Int32); message @14 :Data; }
    kill @15 :Int32;
    dismiss @16 :Int32;
    settled @17 :List(Int32);
    finish :group { graceMs @18 :Int32; killedMs @19 :Int32; }
    beat @20 :Void;
    answer @23 :Text;
    remember :group { version @24 :Int64; state @25 :Data; }
  }
}

struct FromAgent {
  union {
    joins :group { machine @0 :Text; places @1 :Int32; program @2 :Text; netDevice @23 :Text; host @24 :Text; job @25 :UInt64; kept @26 :List(KeptPlace); plan @28 :Text;
                   states @29 :List(KeptState); generation @30 :UInt32; numbers @31 :Text; memoryBytes @32 :Int64; widths @33 :List(Int32); }
    started :group { place @3 :Int32; pid @4 :Int64; memory @5 :Text; }
    renewed :group { place @6 :Int32; memory @7 :Text; }
    from :group { place @8 :Int32; of @9 :Generation; message @10 :Data; }
    garbled :group { place @11 :Int32; why @12 :Error; }
    logged :group { place @13 :Int32; line @14 :Data; }
    ended :group { place @15 :Int32; kind @16 :UInt8; how @17 :Error; holdsAny @18 :Bool; left @19 :List(Int64); }
    failed @20 :Error;
    finished @21 :Error;
    beat @22 :Void;
    asks @27 :Text;
  }
}
