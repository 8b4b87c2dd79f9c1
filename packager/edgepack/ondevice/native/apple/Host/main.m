// The app in which the measurement runs: tests on a phone need one. It shows that it is measuring.
#import <UIKit/UIKit.h>

@interface EdgepackDelegate : UIResponder <UIApplicationDelegate>
@property(nonatomic, strong) UIWindow *window;
@end

@implementation EdgepackDelegate

- (BOOL)application:(UIApplication *)application
    didFinishLaunchingWithOptions:(NSDictionary *)options {
  self.window = [[UIWindow alloc] initWithFrame:UIScreen.mainScreen.bounds];
  self.window.rootViewController = [UIViewController new];
  self.window.rootViewController.view.backgroundColor = UIColor.blackColor;
  [self.window makeKeyAndVisible];
  application.idleTimerDisabled = YES;  // a phone that locks itself ends the measurement
  return YES;
}

@end

int main(int argc, char *argv[]) {
  @autoreleasepool {
    return UIApplicationMain(argc, argv, nil, NSStringFromClass([EdgepackDelegate class]));
  }
}
