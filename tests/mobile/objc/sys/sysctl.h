// See UIKit/UIKit.h: glibc has no such header.
#pragma once
#include <stddef.h>
extern "C" int sysctlbyname(const char *name, void *old, size_t *size, void *value, size_t length);
