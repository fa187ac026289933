# driver.py and the parts of asserts.py become headers, their texts as bytes of C arrays, rebuilt when the files change.
foreach(name driver crossing program_end test_end asserts)
  set(source ${CMAKE_CURRENT_LIST_DIR}/${name}.py)
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/${name}_py.h CONTENT
    "/* ${name}_py.h - workers/engine/reward/sandbox/${name}.py, by sandbox.cmake */\nstatic const char ${name}_py[] = {\n@hex@\n0 };\n"
    @ONLY)
endforeach()
target_include_directories(rc_reward PRIVATE ${CMAKE_BINARY_DIR}/generated)
