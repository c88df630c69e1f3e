"""What is said before a start: what a plan changes, and what a check finds."""
