# NVIDIA GPUs. CUDAToolkit_FOUND: streams and memory of a GPU are built (devices/cuda/); TROUPE_HAS_CUDA: kernels, too. Tests need no
# toolkit: they run the same kernels on fibers (devices/fibers/).
set(TROUPE_CUDA "AUTO" CACHE STRING "NVIDIA GPUs: ON, OFF, or AUTO: where the CUDA toolkit is found")
set_property(CACHE TROUPE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TROUPE_HAS_CUDA FALSE)
if(TROUPE_CUDA)
  find_package(CUDAToolkit 13.0 QUIET)
  if(CUDAToolkit_FOUND AND NOT TROUPE_SANITIZE)   # sanitizers see the kernels on fibers
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
      set(TROUPE_HAS_CUDA TRUE)
    endif()
  endif()
  if(CUDAToolkit_FOUND AND NOT TROUPE_HAS_CUDA AND NOT TROUPE_SANITIZE AND NOT TROUPE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TROUPE_CUDA=${TROUPE_CUDA}, but nvcc compiles nothing here: CMake says why above (check_language(CUDA))")
  endif()
  if(NOT CUDAToolkit_FOUND AND NOT TROUPE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TROUPE_CUDA=${TROUPE_CUDA}, but CMake finds no CUDA toolkit 13.0 or newer: put nvcc into PATH, or say -DCUDAToolkit_ROOT=FOLDER")
  endif()
endif()
# -fmad=false: multiply-adds are fused where it is written (kernels/cuda/prelude.cuh).
set(TROUPE_NVCC_OPTIONS -fmad=false -lineinfo -O3 --expt-relaxed-constexpr --extended-lambda
  "SHELL:-Xcompiler -Wall,-Wextra,-Wno-unused-parameter" -Xptxas -warn-spills)
