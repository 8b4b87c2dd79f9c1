// The names of Apple's Foundation and UIKit that the measuring app uses, as Apple's documentation
// has them: enough to check its types where there is no Mac.
#pragma once
#include <stddef.h>

#ifdef __cplusplus
#define nil nullptr
#else
#define nil ((id)0)
#endif
#define YES ((BOOL)1)
#define NO ((BOOL)0)
typedef signed char BOOL;
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef struct { double x, y, width, height; } CGRect;
@class NSString, NSURL, NSError, NSData;

__attribute__((objc_root_class))
@interface NSObject
+ (instancetype)new;
+ (instancetype)alloc;
- (instancetype)init;
- (id)copy;
- (id)mutableCopy;
+ (Class)class;
@end
@protocol NSCopying
@end

@interface NSString : NSObject <NSCopying>
+ (instancetype)stringWithFormat:(NSString *)format, ...;
+ (instancetype)stringWithUTF8String:(const char *)text;
@property(readonly) const char *UTF8String;
@end
@interface NSNumber : NSObject
+ (NSNumber *)numberWithBool:(BOOL)value;
+ (NSNumber *)numberWithChar:(char)value;
+ (NSNumber *)numberWithInt:(int)value;
+ (NSNumber *)numberWithLong:(long)value;
+ (NSNumber *)numberWithInteger:(NSInteger)value;
+ (NSNumber *)numberWithUnsignedLong:(unsigned long)value;
+ (NSNumber *)numberWithFloat:(float)value;
+ (NSNumber *)numberWithDouble:(double)value;
@end
typedef struct {
  unsigned long state;
  id __unsafe_unretained *itemsPtr;
  unsigned long *mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;
@interface NSArray<T> : NSObject
- (T)objectAtIndexedSubscript:(NSUInteger)index;
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state
                                  objects:(id __unsafe_unretained[])buffer
                                    count:(NSUInteger)count;
@end
@interface NSMutableArray<T> : NSArray<T>
- (void)addObject:(T)object;
@end
@interface NSDictionary : NSObject
+ (instancetype)dictionaryWithObjects:(const id[])objects
                              forKeys:(const id<NSCopying>[])keys
                                count:(NSUInteger)count;
- (id)objectForKeyedSubscript:(id)key;
@end
@interface NSMutableDictionary : NSDictionary
- (void)setObject:(id)object forKeyedSubscript:(id<NSCopying>)key;
@end
@interface NSData : NSObject
+ (instancetype)dataWithContentsOfURL:(NSURL *)url;
- (BOOL)writeToURL:(NSURL *)url atomically:(BOOL)atomically;
@end
@interface NSURL : NSObject
- (NSURL *)URLByAppendingPathComponent:(NSString *)component;
@property(readonly) const char *fileSystemRepresentation;
@end
@interface NSJSONSerialization : NSObject
+ (id)JSONObjectWithData:(NSData *)data options:(NSUInteger)options error:(NSError **)error;
+ (NSData *)dataWithJSONObject:(id)object options:(NSUInteger)options error:(NSError **)error;
@end
enum { NSDocumentDirectory = 9, NSUserDomainMask = 1 };
@interface NSFileManager : NSObject
@property(class, readonly) NSFileManager *defaultManager;
- (NSArray<NSURL *> *)URLsForDirectory:(NSUInteger)directory inDomains:(NSUInteger)mask;
@end
@interface NSProcessInfo : NSObject
@property(class, readonly) NSProcessInfo *processInfo;
@property(readonly) NSInteger thermalState;
@property(readonly, getter=isLowPowerModeEnabled) BOOL lowPowerModeEnabled;
@end
NSString *NSStringFromClass(Class type);

@interface UIResponder : NSObject
@end
@interface UIColor : NSObject
@property(class, readonly) UIColor *blackColor;
@end
@interface UIView : UIResponder
@property(copy) UIColor *backgroundColor;
@end
@interface UIViewController : UIResponder
@property(strong) UIView *view;
@end
@interface UIWindow : UIView
- (instancetype)initWithFrame:(CGRect)frame;
- (void)makeKeyAndVisible;
@property(strong) UIViewController *rootViewController;
@end
@interface UIScreen : NSObject
@property(class, readonly) UIScreen *mainScreen;
@property(readonly) CGRect bounds;
@end
@interface UIApplication : UIResponder
@property(getter=isIdleTimerDisabled) BOOL idleTimerDisabled;
@end
@protocol UIApplicationDelegate
@optional
- (BOOL)application:(UIApplication *)application
    didFinishLaunchingWithOptions:(NSDictionary *)options;
@end
@interface UIDevice : NSObject
@property(class, readonly) UIDevice *currentDevice;
@property(getter=isBatteryMonitoringEnabled) BOOL batteryMonitoringEnabled;
@property(readonly) float batteryLevel;
@property(readonly) NSString *systemName;
@property(readonly) NSString *systemVersion;
@end
#ifdef __cplusplus
extern "C"
#endif
int UIApplicationMain(int argc, char *argv[], NSString *principal, NSString *delegate);
