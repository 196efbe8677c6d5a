# cmake --install: headers, both libraries, weir-train, weir-bench, weir-tokenize, and what finds them: a CMake package
# (weir::weir, weir::weir_static) and weir.pc. All paths in them are relative: the tree may be moved.
include(CMakePackageConfigHelpers)

# What a program links besides libweir.a. Names, not paths: its own linker knows where they are,
# but for CUDA's, which seldom are where it looks.
set(links ${OpenMP_C_FLAGS} -ldnnl -lm)
if(WEIR_HAVE_CUDA)
  list(APPEND links -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl -lpthread)
  set_target_properties(weir_shared weir-train weir-bench PROPERTIES INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})
endif()
foreach(link ${links} ${MODULES_LDFLAGS})
  target_link_libraries(weir INTERFACE $<INSTALL_INTERFACE:${link}>)
endforeach()

set_target_properties(weir PROPERTIES EXPORT_NAME weir_static)
set_target_properties(weir_shared PROPERTIES EXPORT_NAME weir)
install(TARGETS weir weir_shared EXPORT weir INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS weir-train weir-bench)
install(PROGRAMS examples/train/tokenize.py DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME weir-tokenize)
install(DIRECTORY include/weir DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/weir)
install(EXPORT weir NAMESPACE weir:: DESTINATION ${package} FILE weirConfig.cmake)
write_basic_package_version_file(weirConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weirConfigVersion.cmake DESTINATION ${package})

file(RELATIVE_PATH to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" WEIR_PC_PREFIX "\${pcfiledir}/${to_prefix}")
cmake_path(APPEND WEIR_PC_LIBDIR "\${prefix}" ${CMAKE_INSTALL_LIBDIR})
cmake_path(APPEND WEIR_PC_INCLUDEDIR "\${prefix}" ${CMAKE_INSTALL_INCLUDEDIR})
list(JOIN links " " WEIR_PC_LIBS_PRIVATE)
list(JOIN WEIR_MODULES " " WEIR_PC_REQUIRES_PRIVATE)
configure_file(scripts/weir.pc.in weir.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weir.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
