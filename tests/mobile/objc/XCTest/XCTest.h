// See UIKit/UIKit.h.
#pragma once
#import "../UIKit/UIKit.h"

@interface XCTestCase : NSObject
@end
#define XCTAssertNotNil(value, ...) ((void)(value), (void)(__VA_ARGS__))
