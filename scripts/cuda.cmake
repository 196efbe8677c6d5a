# The CUDA toolkit, if there is one: the cuda instances of the tables, compiled by nvcc.
#   WEIR_HAVE_CUDA     whether they are built
#   weir_cuda.o        all their objects in one, with weir_ symbols alone: part of the library
#   WEIR_CUDA_LINKS    what a program links besides
set(WEIR_CUDA AUTO CACHE STRING "AUTO: with CUDA if a toolkit is found; ON: fail without; OFF")
set(WEIR_HAVE_CUDA OFF)
if(NOT WEIR_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit 12.0 QUIET)
  if(CUDAToolkit_FOUND)
    set(known "80-real;86-real;89-real;90-real")
    if(CUDAToolkit_VERSION VERSION_LESS 12.8) # newer GPUs are not known to it, and compile this
      list(APPEND known 90-virtual)
    else()
      list(APPEND known 100-real 120-real 120-virtual)
    endif()
    set(WEIR_CUDA_ARCHITECTURES "${known}" CACHE STRING "what nvcc compiles for")
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "nvcc")
    set(CMAKE_CUDA_RUNTIME_LIBRARY None) # linked by name, below
    set(CMAKE_CUDA_ARCHITECTURES OFF)    # of CMake's own trials
    enable_language(CUDA)
    enable_language(CXX)
    foreach(kind STANDARD EXTENSION) # CMake 3.25 does not know it of nvcc 13, and would add another
      set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
    endforeach()
    set(WEIR_HAVE_CUDA ON)
  elseif(WEIR_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WEIR_CUDA=ON, but no CUDA toolkit was found; set CUDAToolkit_ROOT to it, "
                        "or WEIR_CUDA=OFF")
  endif()
endif()
if(NOT WEIR_HAVE_CUDA)
  return()
endif()

file(GLOB CUDA_DEVICE_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/core/cuda*.c)
file(GLOB CUDA_KERNEL_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.cu)
add_library(weir_cuda OBJECT ${CUDA_DEVICE_SOURCES} ${CUDA_KERNEL_SOURCES})
# Warnings are errors on both sides where WEIR_WERROR says so; no exceptions and no guards around the
# statics of nvcc's stubs (set to the same value by whoever comes first), so that C programs need no
# C++ library.
target_compile_definitions(weir_cuda PRIVATE _GNU_SOURCE)
set(nvcc_werror)
if(WEIR_WERROR)
  set(nvcc_werror "-Werror all-warnings")
endif()
target_compile_options(weir_cuda PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:${nvcc_werror} -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics>"
  "$<$<COMPILE_LANGUAGE:C>:SHELL:-Wall -Wextra -Wconversion -Wshadow ${WEIR_WERROR}>")
target_include_directories(weir_cuda PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
target_include_directories(weir_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
set_target_properties(weir_cuda PROPERTIES
  CUDA_STANDARD 20 CUDA_ARCHITECTURES "${WEIR_CUDA_ARCHITECTURES}" POSITION_INDEPENDENT_CODE ON
  C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
if(WEIR_BUILD_TESTS) # what ptxas says is kept for the test of that name
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  set_target_properties(weir_cuda PROPERTIES CUDA_COMPILER_LAUNCHER
    "${Python3_EXECUTABLE};${CMAKE_SOURCE_DIR}/tests/ptxas.py;record")
endif()
# No fused multiply-add where bits are promised (DESIGN 7c).
foreach(stem adam cast reduce)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/kernels/${stem}.cu PROPERTIES COMPILE_OPTIONS
                              --fmad=false)
endforeach()

# One object, so that a program is linked as C and what nvcc names (stubs, fat binaries) is nobody
# else's business.
set(WEIR_CUDA_OBJECT ${CMAKE_BINARY_DIR}/weir_cuda.o)
add_custom_command(
  OUTPUT ${WEIR_CUDA_OBJECT}
  COMMAND ${CMAKE_LINKER} -r -o ${WEIR_CUDA_OBJECT} $<TARGET_OBJECTS:weir_cuda>
  COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=weir_* ${WEIR_CUDA_OBJECT}
  DEPENDS weir_cuda $<TARGET_OBJECTS:weir_cuda>
  COMMAND_EXPAND_LISTS VERBATIM)
set_source_files_properties(${WEIR_CUDA_OBJECT} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
set(WEIR_CUDA_LINKS CUDA::cudart_static) # cuBLASLt is loaded: core/cuda_library.c
set(CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})
