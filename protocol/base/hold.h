/* hold.h - named points where a test can hold a thread, to kill or stop a process exactly there
 *
 * Nothing happens unless RC_TEST_HOLD names a folder, which only tests set. A thread that reaches POINT in the process NAME
 * (log_component) while the folder has a file "NAME@POINT" renames it to "NAME@POINT.PID" and waits until that is removed. So one
 * file holds one thread once, and the test knows which process. Any thread. */
#pragma once
/* Points: the phases of an engine ("loading", "generating", "training", "publishing", "saving", "evaluating"), the states of a run
 * in the controller, and the names given at the calls: "starting", "scoring", "trained", "renaming", "answering", "taken",
 * "passing", "ending", "playing", "rewarded". */
void hold_point(const char *point);
