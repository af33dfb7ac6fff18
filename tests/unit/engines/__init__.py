"""Tests of servetune.engines."""
