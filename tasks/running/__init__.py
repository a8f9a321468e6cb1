"""How a stage starts, resumes and ends, and what it writes."""
