// Runs the measuring program once, with the arguments that lie in the app's documents, and writes
// what it did beside them. Its numbers are in the program's own document, not in XCTest's.
//
//   Documents/edgepack/request.json   in:  {"arguments": [...], "answer": FILE}
//   Documents/edgepack/...            in:  the plan and what it names
//   Documents/edgepack/FILE           out: {"exit", "before", "after", "facts"}
//
// Not tried on a phone.
#import <TargetConditionals.h>
#import <UIKit/UIKit.h>
#import <XCTest/XCTest.h>
#import <sys/sysctl.h>
#import <sys/time.h>
#import <sys/utsname.h>

#include <string>
#include <unistd.h>
#include <vector>

#include "edgepack_measure.h"

namespace {

// The keys are those of edgepack's reader of conditions.
NSDictionary *conditions() {
  NSProcessInfo *process = NSProcessInfo.processInfo;
  UIDevice *device = UIDevice.currentDevice;
  device.batteryMonitoringEnabled = YES;
  NSMutableDictionary *found = [@{
    @"thermal_state" : @(process.thermalState),
    @"low_power_mode" : @(process.isLowPowerModeEnabled),
  } mutableCopy];
  if (device.batteryLevel >= 0) found[@"battery_percent"] = @(100 * device.batteryLevel);
  return found;
}

NSString *bootTime() {
  timeval booted{};
  size_t size = sizeof booted;
  if (sysctlbyname("kern.boottime", &booted, &size, nullptr, 0) != 0) return @"";
  return [NSString stringWithFormat:@"%ld", static_cast<long>(booted.tv_sec)];
}

// By the kernel, as Apple's Technical Q&A QA1361 says. Not by OS_ACTIVITY_DT_MODE, which
// xcodebuild sets for every test.
bool isDebugged() {
  kinfo_proc process{};
  size_t size = sizeof process;
  int name[] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, getpid()};
  if (sysctl(name, 4, &process, &size, nullptr, 0) != 0) return false;
  return (process.kp_proc.p_flag & P_TRACED) != 0;
}

// Of those that Linux names, the ones that this CPU has. Source: Apple, "Determining instruction set
// characteristics", and Linux's arm64 elf_hwcaps.
NSArray<NSString *> *cpuFlags() {
  const struct {
    const char *apple, *name;
  } known[] = {{"hw.optional.arm.FEAT_DotProd", "asimddp"},
               {"hw.optional.arm.FEAT_FP16", "asimdhp"},
               {"hw.optional.arm.FEAT_I8MM", "i8mm"},
               {"hw.optional.arm.FEAT_BF16", "bf16"}};
  NSMutableArray<NSString *> *found = [NSMutableArray new];
  for (const auto &each : known) {
    int value = 0;
    size_t size = sizeof value;
    if (sysctlbyname(each.apple, &value, &size, nullptr, 0) == 0 && value != 0)
      [found addObject:@(each.name)];
  }
  return found;
}

NSDictionary *facts() {
  utsname system{};
  uname(&system);
  return @{
    @"system" : UIDevice.currentDevice.systemName,
    @"version" : UIDevice.currentDevice.systemVersion,
    @"model" : @(system.machine),
    @"boot" : bootTime(),
    @"cpu_flags" : cpuFlags(),
    @"simulator" : @(TARGET_OS_SIMULATOR != 0),
    @"debugged" : @(isDebugged()),
  };
}

NSURL *documents() {
  NSFileManager *files = NSFileManager.defaultManager;
  NSURL *folder = [files URLsForDirectory:NSDocumentDirectory inDomains:NSUserDomainMask][0];
  return [folder URLByAppendingPathComponent:@"edgepack"];
}

int run(NSArray<NSString *> *given) {
  std::vector<std::string> words{"edgepack_measure"};
  for (NSString *word in given) words.emplace_back(word.UTF8String);
  std::vector<char *> arguments;
  for (std::string &word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return edgepack_measure(static_cast<int>(words.size()), arguments.data());
}

}  // namespace

@interface EdgepackMeasureTests : XCTestCase
@end

@implementation EdgepackMeasureTests

- (void)testMeasure {
  NSURL *folder = documents();
  NSData *data = [NSData dataWithContentsOfURL:[folder URLByAppendingPathComponent:@"request.json"]];
  XCTAssertNotNil(data, @"there is no request.json in the app's documents");
  if (data == nil || chdir(folder.fileSystemRepresentation) != 0) return;
  NSDictionary *request = [NSJSONSerialization JSONObjectWithData:data options:0 error:nil];
  NSDictionary *before = conditions();
  const int code = run(request[@"arguments"]);
  NSDictionary *answer =
      @{@"exit" : @(code), @"before" : before, @"after" : conditions(), @"facts" : facts()};
  NSData *said = [NSJSONSerialization dataWithJSONObject:answer options:0 error:nil];
  [said writeToURL:[folder URLByAppendingPathComponent:request[@"answer"]] atomically:YES];
}

@end
