"""Answers of bad servers, cut anywhere, through the whole way from bytes to events."""
