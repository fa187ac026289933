# driver.py becomes driver_py.h, its text as bytes of a C array, rebuilt when the file changes.
set(driver_py ${CMAKE_CURRENT_LIST_DIR}/driver.py)
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${driver_py})
file(READ ${driver_py} driver_hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" driver_hex "${driver_hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," driver_hex "${driver_hex}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/driver_py.h CONTENT
  "/* driver_py.h - workers/engine/reward/sandbox/driver.py, by sandbox.cmake */\nstatic const char driver_py[] = {\n@driver_hex@\n0 };\n"
  @ONLY)
target_include_directories(rc_reward PRIVATE ${CMAKE_BINARY_DIR}/generated)
