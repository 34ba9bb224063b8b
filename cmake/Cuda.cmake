# CUDA: TROUPE_HAS_CUDA says whether kernels are compiled for a GPU. Nothing else needs the toolkit: tests run the same kernels
# on fibers (devices/fibers/).
set(TROUPE_CUDA "AUTO" CACHE STRING "CUDA bodies of ops: AUTO where nvcc is found, ON, OFF")
set_property(CACHE TROUPE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TROUPE_HAS_CUDA FALSE)
if(TROUPE_SANITIZE)
  return()   # sanitizers see the kernels on fibers
endif()
if(TROUPE_CUDA STREQUAL "AUTO" OR TROUPE_CUDA)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)   # H100, H200
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)   # CMake 3.25 does not know that nvcc has C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit 12.8 QUIET)
    set(TROUPE_HAS_CUDA ${CUDAToolkit_FOUND})
  endif()
  if(NOT TROUPE_HAS_CUDA AND NOT TROUPE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TROUPE_CUDA is ON, but nvcc 12.8 or newer is not found: install the CUDA toolkit, or name its compiler "
      "by -DCMAKE_CUDA_COMPILER=.../bin/nvcc")
  endif()
endif()
# -fmad=false: multiply-adds are fused where it is written (kernels/cuda/prelude.cuh).
set(TROUPE_NVCC_OPTIONS -fmad=false -lineinfo -O3 --expt-relaxed-constexpr --extended-lambda
  "SHELL:-Xcompiler -Wall,-Wextra,-Wno-unused-parameter" -Xptxas -warn-spills)
