"""Contracts that every implementation of an extension point must keep."""
