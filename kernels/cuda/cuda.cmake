# The CUDA back end: librollcall_cuda.so beside the executable, opened at run time (one symbol: rc_ops_cuda).
set(RC_HAVE_CUDA OFF)
if(NOT RC_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  file(GLOB cuda_src CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cu ${CMAKE_SOURCE_DIR}/kernels/collective/*.cu)
  if(CMAKE_CUDA_COMPILER AND cuda_src)
    set(RC_HAVE_CUDA ON)
  elseif(RC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RC_CUDA is ON but nvcc or the sources of kernels/cuda were not found")
  endif()
endif()
if(RC_HAVE_CUDA)
  include(${CMAKE_CURRENT_LIST_DIR}/cards.cmake)
  cards_of(arch "${RC_CUDA_ARCH}" ${CMAKE_CUDA_COMPILER})
  message(STATUS "machine code for NVIDIA GPUs of compute capability: ${arch}")
  set(CMAKE_CUDA_ARCHITECTURES ${arch})
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  enable_language(CUDA)
  find_path(CUBLASLT_INC cublasLt.h HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} REQUIRED)
  find_library(CUBLASLT_LIB NAMES cublasLt libcublasLt.so.13
               HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${CUBLASLT_INC}/../lib64 ${CUBLASLT_INC}/../lib REQUIRED)
  add_library(rollcall_cuda SHARED ${cuda_src} kernels/choices.c kernels/tree_steps.c protocol/base/clock.c protocol/base/error.c
              protocol/base/library.c protocol/base/thread.c)
  target_include_directories(rollcall_cuda PRIVATE ${CMAKE_SOURCE_DIR} ${CUBLASLT_INC})
  # the folder's C options are not nvcc's; a product and a sum are fused only where the source says so
  set_target_properties(rollcall_cuda PROPERTIES CUDA_STANDARD 20 COMPILE_OPTIONS "" CUDA_VISIBILITY_PRESET hidden
                        C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON CUDA_RUNTIME_LIBRARY Static
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_compile_options(rollcall_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>)
  target_compile_definitions(rollcall_cuda PRIVATE $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)
  if("${arch}" MATCHES "90a")    # else the kernels with Hopper's own instructions are empty
    target_compile_definitions(rollcall_cuda PRIVATE RC_CUDA_HOPPER=1)
  endif()
  target_link_libraries(rollcall_cuda PRIVATE ${CUBLASLT_LIB} ${CMAKE_DL_LIBS} Threads::Threads)
  target_link_options(rollcall_cuda PRIVATE LINKER:-z,defs)    # what is missing is found here, not where there is a GPU
  install(TARGETS rollcall_cuda LIBRARY DESTINATION lib/rollcall)    # ../lib/rollcall of the executable: kernels/device.c
  get_filename_component(RC_CUBLASLT_DIR ${CUBLASLT_LIB} DIRECTORY)
  list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${RC_CUBLASLT_DIR})    # from no package, when NVIDIA's installer put it there
endif()
