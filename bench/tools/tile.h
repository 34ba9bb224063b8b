// The register tile of the matrix products, alone.
#pragma once

namespace troupe::bench {

/// GFLOP/s of the tile (kernels/cpu/micro.h) on packed panels that lie in the first caches: nothing is packed, and no
/// operand comes from further away. The best of several lengths of k and of many rounds. No product that is made of
/// this tile can be faster.
double tile_gflops();

}  // namespace troupe::bench
