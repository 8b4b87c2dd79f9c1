"""Reaches phones through adb and Xcode's tools, here or behind SSH."""
