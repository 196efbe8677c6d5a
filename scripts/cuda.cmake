# The CUDA toolkit, if there is one: weir_cuda, the cuda instances of the tables, by nvcc; and
# weir_cuda_sim, the same sources as C++ on the simulated runtime of tests/cudasim.
set(WEIR_CUDA AUTO CACHE STRING "AUTO: with CUDA if a toolkit is found; ON: fail without; OFF")
set(WEIR_CUDA_ARCHITECTURES "80-real;86-real;89-real;90-real;100-real;120-real;120-virtual" CACHE STRING
    "what nvcc compiles for")
set(WEIR_HAVE_CUDA OFF)
if(NOT WEIR_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "nvcc")
    enable_language(CUDA CXX)
    set(WEIR_HAVE_CUDA ON)
  elseif(WEIR_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WEIR_CUDA=ON, but no CUDA toolkit was found; set CUDAToolkit_ROOT to it, "
                        "or WEIR_CUDA=OFF")
  endif()
endif()

if(WEIR_HAVE_CUDA)
  file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS kernels/*.cu core/cuda.c)
  add_library(weir_cuda OBJECT ${CUDA_SOURCES})
  # Warnings as errors on both sides; no fused multiply-add where bits are promised (DESIGN 7c).
  target_compile_features(weir_cuda PRIVATE cuda_std_20)
  target_compile_definitions(weir_cuda PRIVATE _GNU_SOURCE)
  target_compile_options(weir_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wshadow>
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wconversion -Wshadow ${WEIR_WERROR}>)
  target_include_directories(weir_cuda PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include
                                               ${CUDAToolkit_INCLUDE_DIRS})
  set_target_properties(weir_cuda PROPERTIES CUDA_ARCHITECTURES "${WEIR_CUDA_ARCHITECTURES}"
                                             POSITION_INDEPENDENT_CODE ON)
  foreach(stem adam cast reduce)
    set_source_files_properties(kernels/${stem}.cu PROPERTIES COMPILE_OPTIONS --fmad=false)
  endforeach()
endif()
