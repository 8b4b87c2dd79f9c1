"""What runs on devices, on Python 3.8 without edgepack: loader, harness, push agent, C."""
