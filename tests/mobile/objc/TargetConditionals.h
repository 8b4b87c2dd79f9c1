// See UIKit/UIKit.h.
#pragma once
#define TARGET_OS_SIMULATOR 0
