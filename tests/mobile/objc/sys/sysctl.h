// See UIKit/UIKit.h: glibc has no such header.
#pragma once
#include <stddef.h>
#define CTL_KERN 1
#define KERN_PROC 14
#define KERN_PROC_PID 1
#define P_TRACED 0x800
struct extern_proc {
  int p_flag;
};
struct kinfo_proc {
  struct extern_proc kp_proc;
};
extern "C" int sysctl(int *name, unsigned count, void *old, size_t *size, void *value, size_t length);
extern "C" int sysctlbyname(const char *name, void *old, size_t *size, void *value, size_t length);
